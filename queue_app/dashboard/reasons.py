"""The likely reasons why tasks wait: most general first, each with a remedy."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Final
from urllib.parse import urlencode

from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy as _lazy
from django.utils.translation import ngettext

from queue_app.core.explanation import because, by
from queue_app.core.shared import Shared
from queue_app.dashboard import labels
from queue_app.dashboard.translation import translate
from queue_app.diagnose.live import Live, current
from queue_app.diagnose.queues import QueueRow
from queue_app.diagnose.waits import WaitReason, waits
from queue_app.services.read.stats import LOADING, READY, UNREACHABLE

#: Maximum number of late schedules, of failing ones, and of reasons of single queues, that the banner names.
NAMED: Final = 5
#: Lengths of a pause: (seconds after which the scheduler resumes it, label).
LENGTHS: Final = (
    ("", _lazy("until resumed")),
    ("900", _lazy("for 15 min")),
    ("3600", _lazy("for 1 h")),
    ("14400", _lazy("for 4 h")),
    ("86400", _lazy("for 24 h")),
)
#: Seconds for which viewers share the reasons that hold some tasks.
FRESH_WAITS: Final = 4.0
#: Code of the reason that no worker serves a queue.
NO_WORKER: Final = "no_worker"
#: Codes of reasons that the queue names itself while no worker serves it.
UNSERVED: Final = "no_worker_for_queue"
OF_WHOLE_QUEUE: Final = frozenset({NO_WORKER, UNSERVED})
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
    return [*_general(live), *(reason for row in live.queues for reason in of_queue(row, live.at))]


def of_one_queue(name: str) -> list[OverviewReason]:
    """Return why the tasks of one queue wait, for its page."""
    now = current()
    return [reason for row in now.queues if row.queue.name == name for reason in of_queue(row, now.at)]


def _read_waits(_key: str) -> dict[str, list[WaitReason]]:
    found: dict[str, list[WaitReason]] = {}
    for wait in waits([row.queue.name for row in current().queues if row.depth]):
        found.setdefault(wait.queue, []).append(wait)
    return found


_waits: Final = Shared(_read_waits, lambda _: FRESH_WAITS)


def _counted(row: QueueRow, now: datetime) -> Iterator[OverviewReason]:
    """Yield the reasons that hold some tasks of a queue, with how many, the longest wait first."""
    for wait in _waits.get().get(row.queue.name, ()):
        if not (wait.code in OF_WHOLE_QUEUE and not row.workers):
            query = urlencode({"queue": wait.queue, "status": "queued", "wait": wait.code, **OLDEST})
            seconds = max(0.0, (now - wait.oldest).total_seconds())
            yield OverviewReason(
                translate(wait.text), wait.queue, wait.is_severe, wait.count, seconds, query, wait.code
            )


def _of_index(live: Live) -> Iterator[OverviewReason]:
    if live.index == UNREACHABLE:
        texts = [_("Redis cannot be reached."), _("Tasks are safe in PostgreSQL, but no task starts until it is back.")]
        if live.reached_at is not None:
            ago = labels.age((live.at - live.reached_at).total_seconds())
            texts.insert(1, _("It last answered %(time)s ago.") % {"time": ago})
        texts += [_("Start it, or fail over: the index is then rebuilt by itself."), _numbers_of_rows()]
        yield OverviewReason(" ".join(texts), severe=True)
    elif live.index == LOADING:
        text = _("The index is being rebuilt. Tasks start; some that wait are not in it yet.")
        yield OverviewReason(f"{text} {_numbers_of_rows()}")
    elif live.index != READY:
        text = _("The index is %(state)s. No task starts until a scheduler or worker has rebuilt it from PostgreSQL.")
        yield OverviewReason(f"{text % {'state': live.index}} {_numbers_of_rows()}", severe=True)


def _general(live: Live) -> Iterator[OverviewReason]:
    if live.refusal:
        text = _("Redis refuses writes, so no task starts and no scheduler leads. Tasks are safe in PostgreSQL.")
        yield OverviewReason(f"{text} {live.refusal}", severe=True)
    else:
        yield from _of_index(live)
    if live.has_leader is False and not live.refusal:
        yield OverviewReason(
            _(
                "No scheduler is running: due tasks are not queued, tasks of dead workers are not requeued."
                " Start manage.py runscheduler."
            ),
            severe=True,
        )
    elif live.has_leader and not live.watched.is_running:
        yield OverviewReason(
            _("A scheduler leads, but has not looked for work that stands still: its loop may hang. Restart it."),
            severe=True,
        )
    for stall in live.watched.stalls if live.watched.is_running else ():  # else they are old
        yield OverviewReason(f"{translate(stall.text)} {translate(stall.steps)}".strip(), severe=True)
    if not live.active_workers:
        yield OverviewReason(_("No worker is active. Start one with manage.py runworker."), severe=bool(live.depth))
    if live.died:
        yield _died(live)
    settings = live.settings
    if getattr(settings, "paused", False):
        yield OverviewReason(_paused(_("Everything"), settings), severe=True)
    if settings.cap is not None and live.active >= settings.cap and live.depth:
        yield OverviewReason(
            _("The limit over all queues is reached: %(active)d of %(cap)d tasks are running.")
            % {"active": live.active, "cap": settings.cap}
        )
    if live.late_workers:
        yield OverviewReason(
            ngettext(
                "%(count)d worker has missed heartbeats. Its tasks are queued again once it counts as dead.",
                "%(count)d workers have missed heartbeats. Their tasks are queued again once they count as dead.",
                live.late_workers,
            )
            % {"count": live.late_workers}
        )


def _died(live: Live) -> OverviewReason:
    names = ", ".join(name for name, _at in live.died[:NAMED])
    text = ngettext(
        "%(count)d worker has died, %(time)s ago: %(names)s. Its tasks are queued again.",
        "%(count)d workers have died within 10 min, the last %(time)s ago: %(names)s. Their tasks are queued again.",
        len(live.died),
    )
    ago = labels.age((live.at - live.died[0][1]).total_seconds())
    more = "…" if len(live.died) > NAMED else ""
    return OverviewReason(text % {"count": len(live.died), "time": ago, "names": names + more}, page="workers")


def _numbers_of_rows() -> str:
    return _("The numbers of queued and running tasks are PostgreSQL's.")


def of_schedules(live: Live) -> Iterator[OverviewReason]:
    """Yield which schedules have not run, or fail again and again."""
    for late in live.overdue[:NAMED]:
        text = _("The schedule %(name)s was due %(time)s ago and has not run since.")
        yield OverviewReason(text % {"name": late.name, "time": labels.age(late.seconds)}, severe=True)
    for failing in live.failing[:NAMED]:
        text = _("The schedule %(name)s has failed %(count)s times in a row.")
        yield OverviewReason(text % {"name": failing.name, "count": failing.times}, severe=True)
    more = len(live.overdue[NAMED:]) + len(live.failing[NAMED:])
    if more:
        text = ngettext("%(count)d more schedule is late or fails.", "%(count)d more schedules are late or fail.", more)
        yield OverviewReason(text % {"count": more}, severe=True)


def of_queue(row: QueueRow, now: datetime) -> Iterator[OverviewReason]:
    """Yield why the tasks of one queue wait: what holds all of them, then what holds some."""
    queue = row.queue
    if queue.paused:
        yield _of_all(row, _paused(_("The queue"), queue))
    if not row.depth:
        return
    if not row.workers:
        yield _of_all(row, _("No active worker serves it."), severe=True, code=NO_WORKER)
    if queue.cap is not None and row.active >= queue.cap:
        text = _("Its limit is reached: %(active)d of %(cap)d tasks are running.")
        yield _of_all(row, text % {"active": row.active, "cap": queue.cap})
    throttled: datetime | None = getattr(queue, "throttled_until", None)
    if throttled is not None and throttled > now:
        seconds = labels.duration((throttled - now).total_seconds())
        text = _("Task code asked to slow down: no task starts for %(seconds)s.") % {"seconds": seconds}
        yield _of_all(row, text)
    if getattr(queue, "rate_count", None) and not queue.paused:
        limits = {"count": queue.rate_count, "seconds": labels.duration(queue.rate_seconds or 0)}
        yield _of_all(row, _("It has a rate limit: %(count)d per %(seconds)s.") % limits)
    yield from _counted(row, now)


def _of_all(row: QueueRow, text: str, *, severe: bool = False, code: str = "") -> OverviewReason:
    """Return a reason that holds every task of a queue."""
    oldest = max((band.oldest for band in row.bands if band.oldest is not None), default=0.0)
    query = urlencode({"queue": row.queue.name, "status": "queued", **OLDEST})
    return OverviewReason(text, row.queue.name, severe, row.depth, oldest, query, code)


def _paused(what: str, paused: object) -> str:
    person, why = getattr(paused, "paused_by", ""), getattr(paused, "paused_reason", "")
    names = {"what": what, "by": translate(by(person)), "why": because(why)}
    text = _("%(what)s is paused%(by)s%(why)s") % names
    resume_at: datetime | None = getattr(paused, "resume_at", None)
    if resume_at is not None:
        # A length, not a time of day, because viewers in several time zones share the text.
        left = labels.age((resume_at - timezone.now()).total_seconds())
        text += _(" It resumes in %(time)s.") % {"time": left}
    return text
