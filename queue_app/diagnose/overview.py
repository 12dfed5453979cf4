"""The overview: the banner says once what is wrong, with a remedy; then the numbers, and the queues with the rest.

Its sentences are English, as those of all services; the templates translate them (``tq_translate``).
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final
from urllib.parse import urlencode

from django.utils.translation import gettext_lazy as _lazy

from queue_app.core import rooms
from queue_app.core.reasons import Level, Reason, reason, subject
from queue_app.core.sentence import age, joined, sentence, sentence_n
from queue_app.core.shared import Shared
from queue_app.diagnose.live import NUMBERS_OF_ROWS, Live, QueueRow, current
from queue_app.diagnose.system import troubles
from queue_app.diagnose.waits import WaitReason, of_limit, waits
from queue_app.services.control.advice import advice
from queue_app.services.read.stats import READY

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


@dataclass(frozen=True, slots=True)
class OverviewReason:
    """One reason; for all queues if ``queue`` is empty. ``severe`` reasons stop all work, or are unexpected.

    ``count`` tasks wait for it, the oldest for ``seconds``; ``query`` is the address of their list. ``hint`` says
    what to do about it.
    """

    text: str
    queue: str = ""
    severe: bool = False
    count: int = 0
    seconds: float = 0.0
    query: str = ""
    code: str = ""
    hint: str = ""
    #: The queues that one line of the banner covers; ``queue`` then names them.
    queues: tuple[str, ...] = ()
    #: The page that shows more.
    page: str = ""


def reasons(live: Live) -> list[OverviewReason]:
    """Return why tasks wait."""
    return [*_general(live), *(each for row in live.queues for each in of_queue(row, live.at))]


def of_one_queue(name: str) -> list[OverviewReason]:
    """Return why the tasks of one queue wait, for its page."""
    now = current()
    return [each for row in now.queues if row.queue.name == name for each in of_queue(row, now.at)]


def _read_waits(_key: str) -> dict[str, list[WaitReason]]:
    found: dict[str, list[WaitReason]] = {}
    for wait in waits([row.queue.name for row in current().queues if row.depth]):
        found.setdefault(wait.queue, []).append(wait)
    return found


_waits: Final = Shared(_read_waits, lambda _: FRESH_WAITS)
_advice: Final = Shared(lambda _: advice(), lambda _: FRESH_ADVICE)


def _counted(row: QueueRow, now: datetime) -> Iterator[OverviewReason]:
    """Yield the reasons that hold some tasks of a queue, with how many, the longest wait first."""
    for wait in _waits.get().get(row.queue.name, ()):
        code = wait.kind.code
        if not (code in OF_WHOLE_QUEUE and not row.workers):
            query = urlencode({"queue": wait.queue, "status": "queued", "wait": code, **OLDEST})
            seconds = max(0.0, (now - wait.oldest).total_seconds())
            yield OverviewReason(wait.text, wait.queue, wait.is_severe, wait.count, seconds, query, code, wait.remedy)


def _general(live: Live) -> Iterator[OverviewReason]:
    for trouble in troubles(live.system):
        # The steps against a stall are said already; of the rest, what to do.
        remedy = trouble.remedy if trouble.kind.check != "stalls" or not live.system.watched_stalls else ""
        parts = [trouble.text, _last_answer(live), remedy]
        yield OverviewReason(joined(*parts), severe=trouble.kind.level is Level.FAIL, code=trouble.code)
    if live.system.index != READY:
        yield OverviewReason(NUMBERS_OF_ROWS)
    if not live.active_workers:
        yield OverviewReason(reason("no_worker").advice, severe=bool(live.depth))
    if live.died:
        yield _died(live)
    for each in of_limit(subject("everything"), live.settings, live.active if live.depth else 0, live.at):
        yield OverviewReason(each.text, severe=each.code == "paused")
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
    names = ", ".join(name for name, _at in live.died[:NAMED])
    text = sentence_n(
        "%(n)s worker has died, %(time)s ago: %(names)s. Its tasks are queued again.",
        "%(n)s workers have died within 10 min, the last %(time)s ago: %(names)s. Their tasks are queued again.",
        len(live.died),
        time=age((live.at - live.died[0][1]).total_seconds()),
        names=names + ("…" if len(live.died) > NAMED else ""),
    )
    return OverviewReason(text, page="workers")


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
    oldest = max((band.oldest for band in row.bands if band.oldest is not None), default=0.0)
    query = urlencode({"queue": row.queue.name, "status": "queued", **OLDEST})
    severe = why.kind.level is Level.FAIL
    return OverviewReason(why.text, row.queue.name, severe, row.depth, oldest, query, why.code, why.remedy)


def overview_context(user: Any) -> dict[str, Any]:
    """Return the overview, without queues and workers that the user may not see."""
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
    in_banner = {(each.queue, each.text) for each in stuck if not each.queues}
    unserved = {name for each in stuck for name in each.queues}
    in_banner |= {(name, each.text) for name in unserved for each in by_queue[name] if each.code == UNSERVED}
    rows = []
    for row in now.queues:  # what the banner says of a queue is not repeated in its row
        found = by_queue.get(row.queue.name, [])
        others = [each for each in found if (each.queue, each.text) not in in_banner]
        rows.append((row, others, sum(each.count for each in found if each not in others)))
    suggested = _advice.get() if user.has_perm("queue_app.view_queuestats") else []
    parts = rooms.named("overview").items()
    return {name: part.show(now.parts[name]) if user.has_perm(part.permission) else [] for name, part in parts} | {
        "live": now,
        "general": general,
        "stuck": stuck,
        "rows": rows,
        "advice": suggested,
        "lengths": LENGTHS,
    }


def _merged(stuck: list[OverviewReason]) -> list[OverviewReason]:
    """Make one message of the many that say of one queue each that no worker serves it."""
    unserved = [each for each in stuck if each.code == UNSERVED]
    if not unserved:
        return stuck
    names = tuple(each.queue for each in unserved)
    shown: str = ", ".join(names[:NAMED])
    if more := len(names[NAMED:]):
        shown = sentence("%(tasks)s and %(n)s more", tasks=shown, n=more)
    query = unserved[0].query if len(names) == 1 else urlencode({"status": "queued", "wait": UNSERVED, **OLDEST})
    merged = replace(
        unserved[0],
        text=unserved[0].text if len(names) == 1 else sentence("No live worker serves them."),
        queue=shown,
        queues=names,
        count=sum(each.count for each in unserved),
        seconds=max(each.seconds for each in unserved),
        query=query,
        hint=reason(UNSERVED, queue=",".join(names)).remedy,
    )
    return [*(each for each in stuck if each.code != UNSERVED), merged]
