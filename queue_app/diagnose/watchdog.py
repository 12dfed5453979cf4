"""Find work that stands still although nothing prevents it, report the stall, and end it.

The reconciler repairs the faults that it knows. The watchdog does not look for causes: it compares the work that could
continue, by the rows, with the work that does. Every second the leading scheduler looks for

- a queued task that a worker with a free slot could run, while no pause or limit stands in the way;
- a scheduled task whose time has come, and that is not queued;
- an executing task that is far past its deadline;
- a job of the scheduler that fails again and again or gets no turn, and an upkeep job that is overdue.

A stall is logged as an error, counted, and kept in the row of the job ``watchdog``; doctor, metrics, admin and explain
read it there (``diagnose.stalls``). Then the watchdog acts: it queues or fails late tasks itself, gives a job its
turn, and repairs the index (``IndexRepair``). The scheduler also takes each of these steps at other times, and every
step is safe at any time. So a false alarm costs only time.
"""

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar, Final

from django.db import Error as DatabaseError
from django.utils import timezone

from queue_app import signals
from queue_app.core.reasons import moment
from queue_app.core.sentence import joined, sentence
from queue_app.diagnose import stalls as record
from queue_app.diagnose.stalls import Key, Stall, StallDetector, Turns
from queue_app.exceptions import IndexUnavailable
from queue_app.index import get_index, is_refusal
from queue_app.index.server import refused_writes
from queue_app.services.notify import events
from queue_app.services.notify.index import condemn
from queue_app.services.repair.reap import reap_overdue
from queue_app.services.repair.rebuild import is_needed, rebuild_until_open
from queue_app.services.repair.reconcile import reconcile_everything
from queue_app.services.upkeep.jobs import Answers, pending_work
from queue_app.services.upkeep.promote import make_due
from queue_app.sql.doctor import STALL_SECONDS

#: Interval of the checks.
CHECK_SECONDS: Final = 1.0
#: Longest gap between two checks. After a longer one the watch starts over: the watchdog missed what happened.
MAX_GAP_SECONDS: Final = 10.0
#: Interval at which the row is written while nothing changes.
WRITE_SECONDS: Final = 15.0
#: Time for which stalls that another leader found count as present: this one has to find them again.
INHERIT_SECONDS: Final = 2 * STALL_SECONDS
#: Jobs whose unexpected errors come from what the index holds.
READERS: Final = frozenset({"reconcile", "fallback"})
#: Maximum length of the text about the steps against one stall; the last step is kept.
MAX_STEPS: Final = 500
#: Seconds from the comparison to the first rebuild, and from each rebuild to the next; the last repeats. ``condemn``
#: has a bound of its own, which also holds for stalls that come again, and after a change of the leader.
REBUILD_AFTER: Final = (5.0, 60.0, 300.0, 900.0, 3600.0)

logger = logging.getLogger("taskqueue")


class IndexRepair:
    """The steps against a stall of the index; ``clock`` returns monotonic seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._compared = False
        self._rebuilds = 0
        self._next_at = 0.0  # when a rebuild may follow

    def rest(self) -> None:
        """Forget the steps taken: no stall is left, and the next one starts with a comparison."""
        self._compared, self._rebuilds = False, 0

    def step(self, because: str) -> str:
        """Take the next step against a stall, if its time has come; return what was done, else ''."""
        now = self._clock()
        if is_refusing_writes():
            return ""  # a full or read-only server is no damage, and no repair can be written
        if not self._compared:
            self._compared, self._next_at = True, now + REBUILD_AFTER[0]
            return _attempt(sentence("compared index and rows"), reconcile_everything)
        if now < self._next_at or not (condemn(because) or rebuild_is_due()):
            return ""
        self._rebuilds += 1
        self._next_at = now + REBUILD_AFTER[min(self._rebuilds, len(REBUILD_AFTER) - 1)]
        return _attempt(sentence("rebuilt the index"), rebuild_until_open)


def is_refusing_writes() -> bool:
    """Whether Redis refuses all writes."""
    try:
        return bool(refused_writes(get_index()))
    except IndexUnavailable:
        return False


def rebuild_is_due() -> bool:
    """Whether the rows refuse the present index, for example because an error condemned it."""
    try:
        return is_needed()
    except IndexUnavailable:
        return False


def _attempt(what: str, action: Callable[[], object]) -> str:
    """Run a step; log its failure, because the watchdog must continue with other stalls."""
    try:
        action()
    except Exception as error:
        logger.exception("the watchdog has not %s", what)
        return sentence("not %(what)s: %(error)s", what=what, error=type(error).__name__)
    return what


class Watchdog:
    """Looks for stalls and ends them; ``clock`` returns monotonic seconds."""

    QUESTIONS: ClassVar = ("startable", "late", "overrun", "upkeep")

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.stalls: dict[Key, Stall] = {}
        self._clock = clock
        self._answers: Answers | None = None
        self._detector = StallDetector(float("-inf"))
        self._repair = IndexRepair(clock)
        self._since: dict[Key, float] = {}  # when each stall was reported
        self._inherited: set[Key] = set()  # stalls that another leader found
        self._checked_at = self._written_at = float("-inf")

    def keep(self, answers: Answers) -> bool:
        """Keep the answers of this turn's query; return true, because the watchdog always runs."""
        self._answers = answers
        return True

    def run_once(self, jobs: Sequence[Turns] = ()) -> None:
        """Check once, report what has changed, and act."""
        answers, self._answers = self._answers or pending_work(self.QUESTIONS), None
        now = self._clock()
        if now - self._checked_at > MAX_GAP_SECONDS:
            self._begin(now)
        if self._report(now, self._detector.check(now, answers, jobs)):
            self._write()  # before the steps, which may take long
        if self._act(jobs) or now - self._written_at >= WRITE_SECONDS:
            self._write()
        self._checked_at = self._clock()

    def _begin(self, now: float) -> None:
        """Begin the watch with what the last leader wrote."""
        watched = record.read()
        self._detector = StallDetector(now)
        self.stalls = {(stall.kind, stall.subject): stall for stall in watched.stalls}
        self._since, self._inherited = dict.fromkeys(self.stalls, now), set(self.stalls)

    def _write(self) -> None:
        self._written_at = self._clock()
        record.write(list(self.stalls.values()))

    def _report(self, now: float, found: Sequence[Stall]) -> bool:
        """Announce stalls that have begun or ended; return whether there is one."""
        before, current = self.stalls, {(stall.kind, stall.subject): stall for stall in found}
        if now - self._detector.began_at < INHERIT_SECONDS:
            current = {key: before[key] for key in self._inherited if key in before} | current
        began = timezone.now().isoformat(timespec="seconds")
        self.stalls = {key: _continued(stall, before.get(key), began) for key, stall in current.items()}
        for key in current.keys() - before.keys():
            self._since[key] = now
            kind, subject = current[key].kind, current[key].subject
            events.count({f"stall:{kind}": 1})
            signals.stalled.send(None, kind=kind, subject=subject, text=current[key].text)
        for key in before.keys() - current.keys():
            seconds = now - self._since.pop(key, now)
            signals.stall_ended.send(None, kind=before[key].kind, subject=before[key].subject, seconds=seconds)
        return current.keys() != before.keys()

    def _act(self, jobs: Iterable[Turns]) -> bool:
        """Take the next step against each stall; return whether the index was repaired."""
        kinds = {stall.kind for stall in self.stalls.values()}
        if "not_due" in kinds:
            make_due()
        if "overrun" in kinds:
            reap_overdue()
        stuck = {job.name: job for job in jobs if ("job", job.name) in self.stalls}
        for job in stuck.values():
            job.due_at = 0.0
        keys = [key for key, stall in self.stalls.items() if _is_of_index(stall, stuck)]
        if not keys:
            self._repair.rest()
            return False
        step = self._repair.step(self.stalls[keys[0]].text)
        if step:
            step = sentence("%(time)s: %(what)s.", time=moment(timezone.now()), what=step)
            for key in keys:
                before = self.stalls[key].steps
                steps = joined(before, step) if len(before) + len(step) < MAX_STEPS else step
                self.stalls[key] = replace(self.stalls[key], steps=steps)
            signals.stall_acted.send(None, step=step)
        return bool(step)


def _continued(stall: Stall, before: Stall | None, began: str) -> Stall:
    """Return a stall with the begin and the steps of the last check."""
    return replace(stall, since=before.since, steps=before.steps) if before else replace(stall, since=began)


def _is_of_index(stall: Stall, stuck: Mapping[str, Turns]) -> bool:
    """Whether what the index holds may be the cause: Redis refuses it, or a job that reads it fails."""
    job = stuck.get(stall.subject) if stall.kind == "job" else None
    if job is None or job.error is None:
        return stall.kind == "not_started"
    return is_refusal(job.error) or (job.name in READERS and not isinstance(job.error, DatabaseError))
