"""The overview: a verdict, then what needs a person, the worst first; then the numbers, and the queues with the rest.

Its sentences are English, as those of all services; the templates translate them (``tq_translate``).
"""

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final, NamedTuple
from urllib.parse import urlencode

from django.utils import timezone
from django.utils.translation import gettext_lazy as _lazy

from queue_app.core import rooms
from queue_app.core.limits import Scope
from queue_app.core.reasons import Level, Reason, reason, subject
from queue_app.core.redaction import redact
from queue_app.core.sentence import age, joined, sentence, sentence_n, some_of
from queue_app.core.shared import Shared
from queue_app.diagnose.live import NUMBERS_OF_ROWS, Live, QueueRow, current
from queue_app.diagnose.system import troubles
from queue_app.diagnose.waits import WaitReason, of_limit, waits
from queue_app.models import Limit, Queue
from queue_app.services.control.advice import advice
from queue_app.services.read.dead_letters import secrets_by_task
from queue_app.services.read.stats import READY, UNREACHABLE
from queue_app.sql import attention
from queue_app.sql.database import alias

#: Maximum number of reasons of one kind that the banner names.
NAMED: Final = 5
#: Lengths of a pause: (seconds after which the scheduler resumes it, label).
LENGTHS: Final = (
    ("", _lazy("until resumed")),
    ("900", _lazy("for 15 min")),
    ("3600", _lazy("for 1 h")),
    ("14400", _lazy("for 4 h")),
    ("86400", _lazy("for 24 h")),
)
#: Seconds for which viewers share the reasons that hold some tasks, and the suggestions, made of snapshots of a minute.
FRESH_WAITS: Final = 4.0
FRESH_ADVICE: Final = 60.0
#: Codes of reasons that the queue names itself while no worker serves it.
UNSERVED: Final = "no_worker_for_queue"
OF_WHOLE_QUEUE: Final = frozenset({"no_worker", UNSERVED})
#: A list of waiting tasks begins with the oldest one, whose age the reason names.
OLDEST: Final = {"sort": "oldest"}


class Link(NamedTuple):
    """A way to act: text, page of the admin (``model_view``), the permission that it needs; a form if it holds."""

    text: str
    page: str
    permission: str
    query: str = ""
    args: tuple[Any, ...] = ()
    holds: str = ""  # task type that it pauses


@dataclass(frozen=True, slots=True)
class OverviewReason:
    """One thing that needs a person, or with ``is_note`` only says something; of one queue if ``queue`` is set.

    ``severe`` things stop all work, or are unexpected. ``count`` tasks wait, the oldest for ``seconds``; ``query`` is
    the address of their list. ``hint`` says what to do about it.
    """

    text: str
    queue: str = ""
    severe: bool = False
    count: int = 0
    seconds: float = 0.0
    query: str = ""
    code: str = ""
    hint: str = ""
    #: The reasons that one line stands for; ``queue`` then names their queues.
    stands_for: tuple["OverviewReason", ...] = ()
    #: What it is about, if that is no queue.
    about: str = ""
    links: tuple[Link, ...] = ()
    is_note: bool = False
    #: The failed attempts of a type, whose errors only those see who may see payloads.
    cause: attention.FailingType | None = None
    #: A paused queue that its row offers to resume.
    resumes: Queue | None = None

    @property
    def short_type(self) -> str:
        """The name of the task type that it is about, without its module."""
        return self.about.rpartition(".")[2]


def reasons(live: Live) -> list[OverviewReason]:
    """Return why tasks wait."""
    return [*_general(live), *(each for row in live.queues for each in of_queue(row, live.at))]


def of_one_queue(name: str) -> list[OverviewReason]:
    """Return why the tasks of one queue wait, for its page."""
    now = current()
    return [each for row in now.queues if row.queue.name == name for each in of_queue(row, now.at)]


# What needs a person, beside what stops the work of a queue.

#: Number and share of failed attempts from which a type fails, unless about as many have failed before.
FEWEST_FAILED: Final = 3
LEAST_SHARE: Final = 0.05
#: Seconds for which viewers share the failing types, the answers that tasks wait for, and the dead letters.
FRESH_TROUBLE: Final = 3.0
FRESH_LETTERS: Final = 10.0


def _read_failing(_key: str) -> list[tuple[attention.FailingType, float | None, Any]]:
    """Return the types that fail, each with its share of the day before, and its limit if that is paused."""
    found = [each for each in attention.failing() if each.failed >= FEWEST_FAILED and each.share >= LEAST_SHARE]
    names = [each.task_type for each in found]
    before = attention.failed_before(names, min((each.since for each in found), default=timezone.now()))
    limits = Limit.objects.using(alias()).filter(scope=Scope.TYPE, name__in=names, paused=True) if names else ()
    paused = {limit.name: limit.pk for limit in limits}
    usual = {name: min(2 * (share or 0.0), (1 + (share or 0.0)) / 2) for name, share in before.items()}
    return [
        (each, before.get(each.task_type), paused.get(each.task_type))
        for each in found if each.share >= usual.get(each.task_type, 0.0)
    ]  # fmt: skip


#: Seconds for which the oldest task of a paused queue waits before the pause counts as forgotten.
PAUSED_LONG: Final = 600.0
#: How many dead letters of a failing type its row offers to replay, to see whether it is mended.
FIRST_REPLAYS: Final = 10
_failing: Final = Shared(_read_failing, lambda _: FRESH_TROUBLE)
_awaited: Final = Shared(lambda _: attention.awaited_answers(), lambda _: FRESH_TROUBLE)
_deaths: Final = Shared(lambda _: attention.deaths(), lambda _: FRESH_LETTERS)


def _failing_types() -> Iterator[OverviewReason]:
    """Yield the task types that fail now: how many against before, since when, and the ways to act."""
    now, dead = timezone.now(), {each.task_type for each in _deaths.get() if each.number}
    for each, before, paused in _failing.get():
        is_over = (now - each.until).total_seconds() > attention.GAP_SECONDS
        span = ((each.until if is_over else now) - each.begin).total_seconds()
        began = age((now - each.since).total_seconds())
        text = joined(
            sentence(
                "%(failed)s of %(attempts)s attempts failed within %(time)s (%(share)s %%).",
                failed=each.failed, attempts=each.failed + each.completed, time=age(span), share=_percent(each.share),
            ),
            "" if before is None else sentence("In the day before, %(share)s %% failed.", share=_percent(before)),
            sentence("It began more than %(time)s ago.", time=began) if each.is_older
            else "" if each.since == each.begin and not is_over else sentence("It began %(time)s ago.", time=began),
            sentence("None has completed since.") if is_over else "",
            sentence("The type is paused.") if paused else "",
        )  # fmt: skip
        query, listed_by = (urlencode({name: each.task_type, "state": "open"}) for name in ("task_type", "q"))
        letters = [
            Link(sentence("Dead letters"), "deadletter_changelist", "queue_app.view_deadletter", listed_by),
            Link(
                sentence("Replay %(number)s…", number=FIRST_REPLAYS),
                "deadletter_matching",
                "queue_app.replay_deadletter",
                f"{query}&limit={FIRST_REPLAYS}&order=newest",
            ),
        ]
        hold = Link(sentence("Pause"), "limit_hold", "queue_app.pause_limit", holds=each.task_type)
        if paused:
            hold = Link(sentence("Resume…"), "limit_change", "queue_app.pause_limit", args=(paused,))
        links = (*(letters if each.task_type in dead else ()), hold)
        yield OverviewReason(text, severe=not paused, about=each.task_type, links=links, cause=each)


def _percent(share: float) -> str:
    return f"{100 * share:.0f}" if share >= 0.1 or not share else f"{max(0.1, 100 * share):.1f}"  # noqa: PLR2004


def _behind_targets(
    live: Live, known: Mapping[str, Sequence[OverviewReason]], said: Container[str]
) -> Iterator[OverviewReason]:
    """Yield the queues whose oldest tasks wait longer than the target of their band, but for those said already."""
    for row in live.queues:
        late = next((band for band in row.bands if band.is_late), None)
        if late is not None and late.target and not row.queue.paused and row.queue.name not in said:
            text = sentence(
                "Its %(band)s tasks wait longer than their target of %(time)s.",
                band=sentence(late.band.label), time=age(late.target),
            )  # fmt: skip
            why = tuple(known.get(row.queue.name, ()))[:1]
            text = joined(text, *(each.text for each in why))
            query = urlencode({"queue": row.queue.name, "status": "queued", **OLDEST})
            yield OverviewReason(text, row.queue.name, False, row.depth, row.oldest, query, stands_for=why)


def _paused_long(live: Live, known: Mapping[str, Sequence[OverviewReason]]) -> Iterator[OverviewReason]:
    """Yield the paused queues whose tasks wait long, but for pauses that end by themselves."""
    for row in live.queues:
        if row.queue.paused and row.queue.resume_at is None and row.oldest >= PAUSED_LONG:
            for why in known.get(row.queue.name, ()):
                if why.code == "paused":
                    yield replace(why, queue="", hint="", stands_for=(why,), resumes=row.queue)


def _awaited_answers(now: datetime) -> Iterator[OverviewReason]:
    """Yield that tasks wait for a person, each with its form."""
    if found := _awaited.get():
        text = sentence_n(
            "%(n)s task has waited for an answer for %(time)s.",
            "%(n)s tasks wait for an answer, the oldest for %(time)s.",
            found[0].number, time=age((now - found[0].since).total_seconds()),
        )  # fmt: skip
        links = [
            Link(
                sentence(
                    "Answer %(task)s: %(name)s",
                    task=each.workflow or f"{each.task_type.rpartition('.')[2]} {each.key or str(each.task_id)[-8:]}",
                    name=each.signal,
                ),
                "task_signal", "queue_app.send_signal", args=(each.task_id,),
            )
            for each in found
        ]  # fmt: skip
        if found[0].number > len(found):
            every = sentence("All blocked tasks")
            links.append(Link(every, "task_changelist", "queue_app.view_task", "status=blocked"))
        yield OverviewReason(text, links=tuple(links))


def _growing_letters(failing: set[str]) -> Iterator[OverviewReason]:
    """Yield how many dead letters came, if more than before; those of types that fail now are said there."""
    found = [each for each in _deaths.get() if each.number > 2 * each.before and each.task_type not in failing]
    if found:
        types = [f"{each.task_type.rpartition('.')[2]} {each.number}" for each in found]
        text = sentence_n(
            "%(n)s dead letter came within an hour: %(types)s.", "%(n)s dead letters came within an hour: %(types)s.",
            sum(each.number for each in found), types=some_of(types, NAMED),
        )  # fmt: skip
        usual = round(sum(each.before for each in found), 1)
        before = sentence("In the day before, %(n)s came per hour.", n=usual) if usual else ""
        links = (
            Link(sentence("By cause"), "deadletter_groups", "queue_app.view_deadletter"),
            Link(sentence("Dead letters"), "deadletter_changelist", "queue_app.view_deadletter", "state=open"),
        )
        yield OverviewReason(joined(text, before), links=links)


def _read_waits(_key: str) -> dict[str, list[WaitReason]]:
    found: dict[str, list[WaitReason]] = {}
    now = current()
    names = [row.queue.name for row in now.queues if row.depth]
    for wait in waits(names, has_index=now.system.index != UNREACHABLE):
        found.setdefault(wait.queue, []).append(wait)
    return found


_waits: Final = Shared(_read_waits, lambda _: FRESH_WAITS)
_advice: Final = Shared(lambda _: advice(), lambda _: FRESH_ADVICE)


def _counted(row: QueueRow, now: datetime) -> Iterator[OverviewReason]:
    """Yield the reasons that hold some tasks of a queue, with how many, the longest wait first."""
    for wait in _waits.get().get(row.queue.name, ()):
        code = wait.kind.code
        if not ((code in OF_WHOLE_QUEUE and not row.workers) or (row.queue.paused and code == "no_free_slot")):
            query = urlencode({"queue": wait.queue, "status": "queued", "wait": code, **OLDEST})
            seconds = max(0.0, (now - wait.oldest).total_seconds())
            count = row.depth if wait.is_all else min(wait.count, row.depth)  # counted a moment apart
            yield OverviewReason(wait.text, wait.queue, wait.is_severe, count, seconds, query, code, wait.remedy)


def _general(live: Live) -> Iterator[OverviewReason]:
    for trouble in troubles(live.system):
        # The steps against a stall are said already; of the rest, what to do.
        remedy = trouble.remedy if trouble.kind.check != "stalls" or not live.system.watched_stalls else ""
        parts = [trouble.text, _last_answer(live) if trouble.code == "index_unreachable" else "", remedy]
        yield OverviewReason(joined(*parts), severe=trouble.kind.level is Level.FAIL, code=trouble.code)
    if live.system.index != READY:
        yield OverviewReason(NUMBERS_OF_ROWS, is_note=True)
    if live.silent_seconds:
        yield OverviewReason(
            sentence(
                "The scheduler has been silent for %(time)s: it has died, or does one long job.",
                time=age(live.silent_seconds),
            ),
            hint=reason("no_scheduler").remedy,
        )
    if not live.active_workers:
        yield OverviewReason(reason("no_worker").advice, severe=bool(live.depth))
    if live.died:
        yield _died(live)
    for each in of_limit(subject("everything"), live.settings, live.active if live.depth else 0, live.at):
        yield OverviewReason(each.text, severe=each.code == "paused", is_note=each.code != "paused")
    if live.late_workers:
        yield OverviewReason(
            sentence_n(
                "%(n)s worker has missed heartbeats. Its tasks are queued again once it counts as dead.",
                "%(n)s workers have missed heartbeats. Their tasks are queued again once they count as dead.",
                live.late_workers,
            )
        )


def _last_answer(live: Live) -> str:
    """Return when Redis last answered, if it does not answer now."""
    if live.reached_at is None or live.reached_at == live.at:
        return ""
    return sentence("It last answered %(time)s ago.", time=age((live.at - live.reached_at).total_seconds()))


def _died(live: Live) -> OverviewReason:
    text = sentence_n(
        "%(n)s worker has died, %(time)s ago: %(names)s. Its tasks are queued again.",
        "%(n)s workers have died within 10 min, the last %(time)s ago: %(names)s. Their tasks are queued again.",
        len(live.died),
        time=age((live.at - live.died[0][1]).total_seconds()),
        names=some_of(list(dict.fromkeys(name for name, _at in live.died)), NAMED),
    )
    see = Link(sentence("See them"), "worker_changelist", "queue_app.view_worker", "shown=ended")
    return OverviewReason(text, links=(see,))


def of_queue(row: QueueRow, now: datetime) -> Iterator[OverviewReason]:
    """Yield why the tasks of one queue wait: what holds all of them, then what holds some."""
    queue = row.queue
    if row.depth and not row.workers:
        yield _of_all(row, reason(UNSERVED, queue=queue.name))
    for each in of_limit(subject("queue", queue.name), queue, row.active, now):
        if row.depth or each.code == "paused":
            yield _of_all(row, each)
    if row.depth:
        yield from _counted(row, now)


def _of_all(row: QueueRow, why: Reason) -> OverviewReason:
    """Return a reason that holds every task of a queue."""
    query = urlencode({"queue": row.queue.name, "status": "queued", **OLDEST})
    severe = why.kind.level is Level.FAIL
    return OverviewReason(why.text, row.queue.name, severe, row.depth, row.oldest, query, why.code, why.remedy)


def overview_context(user: Any) -> dict[str, Any]:
    """Return the overview, without what the user may not see."""
    if not user.has_perm("queue_app.view_queue"):
        return {"live": None}
    now = current()
    by_queue: dict[str, list[OverviewReason]] = {}
    for each in reasons(now):
        by_queue.setdefault(each.queue, []).append(each)
    general = by_queue.pop("", [])
    if not now.active_workers:  # the banner says so once, not of each queue
        by_queue = {name: [each for each in found if each.code != UNSERVED] for name, found in by_queue.items()}
    severe = [each for found in by_queue.values() for each in found if each.severe and each.count]
    stuck = sorted(_merged(severe), key=lambda each: -each.seconds)[:NAMED]
    in_banner = {part for each in stuck for part in each.stands_for or (each,)}
    late = (
        list(_behind_targets(now, by_queue, {each.queue for each in in_banner}))[:NAMED] if now.active_workers else []
    )
    forgotten = list(_paused_long(now, by_queue))[:NAMED]
    in_banner |= {part for each in (*late, *forgotten) for part in each.stands_for}
    rows = []
    for row in now.queues:  # what the banner says of a queue is not repeated in its row
        found = by_queue.get(row.queue.name, [])
        held = sum(each.count for each in found if each in in_banner and each.severe)
        rows.append((row, [each for each in found if each not in in_banner], min(held, row.depth)))
    may_see_tasks = user.has_perm("queue_app.view_task")
    failing = list(_failing_types())[:NAMED] if may_see_tasks else []
    awaited = _awaited_answers(now.at) if may_see_tasks else ()
    of_rooms = [
        each for name, part in rooms.named("overview").items() if user.has_perm(part.permission)
        for each in part.show(now.parts[name])
    ]  # fmt: skip
    letters = _growing_letters({each.about for each in failing}) if user.has_perm("queue_app.view_deadletter") else ()
    said = [*general, *failing, *stuck, *late, *of_rooms, *awaited, *letters, *forgotten]
    visible = [_visible(each, user) for each in said]
    needs = sorted((each for each in visible if not each.is_note), key=lambda each: not each.severe)
    return {
        "live": now,
        "verdict": verdict(needs, now),
        "needs": [*needs, *(each for each in visible if each.is_note)],
        "rows": rows,
        "advice": _advice.get() if user.has_perm("queue_app.view_queuestats") else [],
        "lengths": LENGTHS,
    }


def verdict(needs: Sequence[OverviewReason], live: Live) -> tuple[str, str]:
    """Return (good, warn or bad, the sentence that says it all)."""
    if needs:
        urgent = sum(each.severe for each in needs)
        text = sentence_n("%(n)s thing needs you", "%(n)s things need you", len(needs))
        return ("bad", joined(text, sentence("(%(n)s urgent)", n=urgent))) if urgent else ("warn", text)
    if any(row.is_late for row in live.queues):
        return "good", sentence("Nothing needs you: tasks wait longer than their target only in paused queues")
    return "good", sentence_n(
        "All is well: %(n)s task completed within the last minute, and no task waits longer than its target",
        "All is well: %(n)s tasks completed within the last minute, and no task waits longer than its target",
        live.completed,
    )


def _visible(each: OverviewReason, user: Any) -> OverviewReason:
    """Return what the user may see and do of it."""
    text, cause = each.text, each.cause
    if cause is not None and user.has_perm("queue_app.view_payload"):
        secrets = secrets_by_task([cause.task_id]).get(cause.task_id, ())
        name, message = (redact(part, secrets)[:200] for part in (cause.exception_class, cause.message))
        error = f"{name.removeprefix('builtins.')}: {message}" if message else name
        most = sentence("Most often, %(n)s times: %(error)s", n=cause.number, error=error)
        text = joined(text, most)
    return replace(each, text=text, links=tuple(link for link in each.links if user.has_perm(link.permission)))


def _merged(stuck: list[OverviewReason]) -> list[OverviewReason]:
    """Make one message of the many that say of one queue each that no worker serves it."""
    unserved = [each for each in stuck if each.code == UNSERVED]
    if len(unserved) < 2:  # noqa: PLR2004 - one message says it of one queue
        return stuck
    names = [each.queue for each in unserved]
    merged = OverviewReason(
        sentence("No live worker serves them."), some_of(names, NAMED), True, sum(each.count for each in unserved),
        max(each.seconds for each in unserved), urlencode({"status": "queued", "wait": UNSERVED, **OLDEST}),
        hint=reason(UNSERVED, queue=",".join(names)).remedy, stands_for=tuple(unserved),
    )  # fmt: skip
    return [*(each for each in stuck if each.code != UNSERVED), merged]
