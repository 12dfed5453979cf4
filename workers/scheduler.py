"""The scheduler: queue due tasks, repeat wake-up calls, find dead workers, repair the index.

Several schedulers may run; the one that holds a lock, a row in PostgreSQL, leads. Every job is idempotent and may run
twice at the same time, so the lock only saves work. A leader renews the lock several times before it expires.

Jobs that are due at about the same time run in one turn. Most jobs find no work most of the time; one query
(``pending_work``) finds that out for all of them.
"""

import logging
import math
import signal
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field

from django.db import Error as DatabaseError, connections

from queue_app import conf
from queue_app.core import rooms
from queue_app.core.process import QueryPauses
from queue_app.diagnose.watchdog import CHECK_SECONDS, Watchdog
from queue_app.exceptions import IndexDamaged, IndexUnavailable, in_one_line
from queue_app.services import requests
from queue_app.services.control.pause import resume_due
from queue_app.services.notify.index import condemn
from queue_app.services.operations.run import run_operations
from queue_app.services.repair.reap import Reaper
from queue_app.services.repair.rebuild import is_needed as rebuild_is_needed, rebuild_until_open
from queue_app.services.repair.reconcile import Reconciler
from queue_app.services.upkeep.jobs import Answers, pending_work, resign, take_lead, wake_idle_workers
from queue_app.services.upkeep.maintenance import is_overdue, purge, run_overdue
from queue_app.services.upkeep.promote import DUE_BATCH, make_due
from queue_app.sql.snapshot import Way
from queue_app.telemetry import log_error, outage_over
from queue_app.workers.health import LoopHeartbeat
from queue_app.workers.lifecycle import Exit, Wakeup, on_hangup, on_signals
from queue_app.workers.lookout import Lookout
from queue_app.workers.summary import Summary

# One job of the scheduler: when it is due, and how it went.

logger = logging.getLogger("taskqueue")

#: Jobs that are due within this time run now, so that they share a turn and a query.
TOGETHER_SECONDS = 0.1
#: Time after which a job that found work, and can tell when work is due, has its next turn at the latest.
AGAIN_SECONDS = 0.5


@dataclass(slots=True)
class Job:
    """An action that runs every ``interval`` seconds; all times are monotonic.

    If the action returns ``True``, work is left, and the job runs again in the next turn. The scheduler skips the job
    if the answers to its questions (``asks``) say that it would find nothing.
    """

    name: str
    interval: float
    action: Callable[[], object]
    due_at: float = 0.0
    needs_index: bool = False  # the job can do nothing without Redis
    is_urgent: bool = False  # a job of a room that does not wait for reap and operations
    has_more: bool = field(default=False)
    asks: tuple[str, ...] = ()  # questions for ``pending_work``
    is_wanted: Callable[[Answers], bool] | None = None  # judges the answers; ``None``: one yes is enough
    next_in: Callable[[Answers], float] | None = None  # seconds until work is due, if that is before the next turn
    turned_at: float = -math.inf  # when it last had a turn
    failing_since: float | None = None
    failures: int = 0  # in a row
    error: Exception | None = None  # the last one

    def run_once(self, answers: Answers | None = None) -> bool:
        """Run the job if there is work, or if there are no answers; return false if the index is unreachable.

        A failure is logged once, and the job is tried again at its next turn.
        """
        self.has_more = False
        try:
            self.has_more = self._may_find_work(answers) and self.action() is True
        except Exception as error:
            if not self.failures and isinstance(error, IndexUnavailable | DatabaseError):
                log_error(error, "%s failed: %s", self.name, in_one_line(error))
            elif not self.failures:
                logger.exception("%s failed", self.name)
            self.failures += 1
            self.failing_since, self.error = self.failing_since or time.monotonic(), error
            if isinstance(error, IndexDamaged):
                condemn(in_one_line(error))
                return True  # the server answers
            if isinstance(error, DatabaseError):
                connections.close_all()
            return not isinstance(error, IndexUnavailable)
        if self.failures:
            outage_over()
        self.failures, self.failing_since, self.error = 0, None, None
        return True

    def next_turn(self, asked_at: float, now: float, answers: Answers | None) -> float:
        """Return when the next turn is, after one for which ``pending_work`` was asked at ``asked_at``.

        It is counted from a full second (of the monotonic clock), so that the jobs stay together; it is earlier if work
        is due earlier. The answers name only the first work that is due, so more may be due soon after it.
        """
        if self.has_more:
            return now
        step = min(1.0, self.interval)
        following = math.floor((now + min(TOGETHER_SECONDS, step / 2)) / step) * step + self.interval
        if answers is None or self.next_in is None:
            return following
        soon = self.next_in(answers)
        return min(following, asked_at + soon if soon > 0 else now + AGAIN_SECONDS)

    def _may_find_work(self, answers: Answers | None) -> bool:
        if answers is None or not self.asks:
            return True
        return self.is_wanted(answers) if self.is_wanted else any(answers[name] for name in self.asks)


#: Minimum time that jobs which need the index wait after it could not be reached.
INDEX_RETRY_SECONDS = 0.5
#: Time after which a loop that has not turned counts as stuck. The longest job compares millions of rows.
STALE_SECONDS = 900.0
#: Maximum time per turn to queue due tasks. With millions of due tasks, dead workers and a lost index still get a turn.
DUE_SECONDS = 1.0
#: Maximum time per turn to delete old rows; due tasks wait meanwhile.
PURGE_SECONDS = 0.3
#: Time after which a new leader starts upkeep, which reads many rows. Other work is more urgent after a failover.
UPKEEP_AFTER_SECONDS = 10.0
#: Number of times that the leader renews its lock before the lock would expire.
RENEWALS = 5


class Scheduler:
    """Runs the jobs while it is the leader."""

    def __init__(self, *, with_maintenance: bool = False) -> None:
        settings = conf.get().scheduler
        self.token = uuid.uuid4().hex
        self.leader_seconds = settings.leader_seconds
        self.leads = False
        self._has_reported = False  # whether the log says if this scheduler leads
        self._with_maintenance = with_maintenance
        self._purging = False
        self._stopping = False
        self._is_failing = False  # whether the leadership could not be asked for
        self._index_back_at = 0.0  # monotonic time until which the scheduler does not use the index
        self._renew_at = 0.0  # monotonic time at which to renew the lock
        self._answers: Answers | None = None  # what this turn's query found
        self._questions: set[str] = set()
        self._summary = Summary()
        self._query = Job("pending_work", 0.0, self._find_pending_work)  # for its error handling; never due
        of_rooms: list[Job] = [job for jobs in rooms.each("jobs") for job in jobs(settings)]
        self._jobs_of_all = [job for jobs in rooms.each("jobs_of_all") for job in jobs(settings)]
        self._wakeup = Wakeup()
        self.loop_heartbeat = LoopHeartbeat()
        self._pauses = QueryPauses(settings.reap_seconds)
        reconciler, reaper, watchdog = Reconciler(), Reaper(self._pauses), Watchdog()
        self._upkeep = [
            Job("maintenance", settings.maintenance_seconds, self._maintain),
            Job("purge", settings.maintenance_seconds, self._purge),
        ]
        self.jobs = [
            Job(
                "rebuild",
                settings.due_seconds,
                rebuild_until_open,
                needs_index=True,
                asks=("generation",),
                is_wanted=lambda answers: rebuild_is_needed(_way(answers)),
            ),
            Job(
                "due",
                settings.due_seconds,
                self._make_all_due,
                asks=("due",),
                is_wanted=lambda answers: answers["due"] <= 0,
                next_in=lambda answers: answers["due"],
            ),
            *(job for job in of_rooms if job.is_urgent),
            Job("requests", settings.due_seconds, requests.consume, needs_index=True),
            Job(
                "reap",
                settings.reap_seconds,
                reaper.run_once,
                # The last one is for the next job: asked each time, it leaves nearly all turns the same statement.
                asks=(*reaper.QUESTIONS, "adaptive"),
                is_wanted=reaper.is_wanted,
            ),
            Job(
                "overdue",
                settings.reap_seconds,
                reaper.fail_overdue,
                asks=("overdue",),
                is_wanted=lambda answers: answers["overdue"] is not False,
            ),
            Job("resume", settings.reap_seconds, resume_due, asks=("pauses",)),
            Job("operations", settings.reap_seconds, run_operations, asks=("operations",)),
            *(job for job in of_rooms if not job.is_urgent),
            Job("reconcile", settings.reconcile_seconds, reconciler.run_once, needs_index=True),
            Job("fallback", settings.fallback_seconds, wake_idle_workers, needs_index=True),
            *self._upkeep,
            Job(
                "watchdog",
                CHECK_SECONDS,
                lambda: watchdog.run_once(self.jobs),
                asks=watchdog.QUESTIONS,
                is_wanted=watchdog.keep,
            ),
        ]

    def run(self) -> Exit:
        """Run until SIGTERM or SIGINT, or until the terminal is closed."""
        with on_signals({signal.SIGTERM: self.stop, signal.SIGINT: self.stop, **on_hangup(self.stop)}):
            self.run_until_stopped()
        logger.info("scheduler %s has stopped", self.token[:8])
        return Exit.OK

    def run_until_stopped(self) -> None:
        """Run until ``stop``, in any thread."""
        lookout = Lookout(self.token, lambda: self.leads)
        lookout.start()
        while not self._stopping:
            self.loop_heartbeat.beat()
            self.run_once()
            self._wakeup.wait(self._next_at() - time.monotonic())
        lookout.stop()
        self._resign()
        connections.close_all()

    def stop(self) -> None:
        """Exit after the current job."""
        self._stopping = True
        self._wakeup.set()

    def run_once(self) -> list[str]:
        """Run the jobs that are due, if this scheduler leads; return their names."""
        ran: list[str] = []
        for job in self._jobs_of_all:
            if job.due_at <= time.monotonic():
                job.run_once()
                job.due_at = time.monotonic() + job.interval
        if not self._lead():
            return ran
        turned_at = time.monotonic()
        due = [job for job in self.jobs if job.due_at <= turned_at + TOGETHER_SECONDS]
        self._questions = {name for job in due for name in job.asks}
        self._answers = None
        self._query.run_once()  # if it fails there are no answers, and every due job runs
        for job in due:
            began = time.monotonic()
            if self._stopping:
                break
            job.turned_at = began
            if job.needs_index and self._index_back_at > began:
                job.due_at = self._index_back_at
                continue
            if not job.run_once(self._answers):
                self._pause_index(began)
            self.loop_heartbeat.beat()
            job.due_at = job.next_turn(turned_at, time.monotonic(), self._answers)
            ran.append(job.name)
        self._summary.log_if_due()
        return ran

    def _find_pending_work(self) -> None:
        if self._questions:
            self._answers = pending_work(self._questions, self._pauses)

    def _maintain(self) -> None:
        run_overdue("promote", "expire", "snapshot", every=self._with_maintenance)

    def _make_all_due(self) -> bool:
        """Queue due tasks for up to ``DUE_SECONDS``; return whether there may be more."""
        until = time.monotonic() + DUE_SECONDS
        while queued := make_due(recent="due" in self._pauses):
            self._summary.add("became due", queued)
            if queued < DUE_BATCH:
                break
            if time.monotonic() >= until:
                return True
        return False

    def _purge(self) -> bool:
        """Delete old rows for up to ``PURGE_SECONDS``; return whether to continue in the next turn."""
        if self._purging or self._with_maintenance or is_overdue("purge"):
            self._purging, began = False, time.monotonic()
            if deleted := purge(seconds=PURGE_SECONDS):
                self._summary.add("ended tasks deleted", deleted)
            self._purging = time.monotonic() >= began + PURGE_SECONDS
        return self._purging

    def _pause_index(self, since: float) -> None:
        """Do not use the index for a while, so that the jobs which need only PostgreSQL get their turns.

        Each try costs up to ``SOCKET_SECONDS``; the pause is twice as long as the try.
        """
        now = time.monotonic()
        self._index_back_at = now + max(INDEX_RETRY_SECONDS, 2 * (now - since))

    def _next_at(self) -> float:
        if not self.leads:
            return time.monotonic() + self.leader_seconds / 3
        return min(job.due_at for job in self.jobs)

    def _lead(self) -> bool:
        began = time.monotonic()
        if self.leads and self._renew_at > began + TOGETHER_SECONDS:
            return True
        try:
            leads = take_lead(self.token, self.leader_seconds)
        except DatabaseError as error:
            if not self._is_failing:
                log_error(error, "the leadership cannot be asked for: %s", in_one_line(error))
            self._is_failing = True
            connections.close_all()
            return self.leads  # its jobs meet the same error; the first one afterwards that asks leads
        if self._is_failing:
            outage_over()
        self._is_failing = False
        self._renew_at = began + self.leader_seconds / RENEWALS
        if leads != self.leads or not self._has_reported:
            role = "leads" if leads else "stands by: another one leads, and this one takes over if that one ends"
            logger.info("scheduler %s %s", self.token[:8], role)
            self.leads, self._has_reported = leads, True
            for job in self._upkeep:
                job.due_at = max(job.due_at, began + UPKEEP_AFTER_SECONDS)
        return leads

    def _resign(self) -> None:
        try:
            resign(self.token)
        except DatabaseError:
            logger.info("cannot release the leader's lock; it expires by itself")


def _way(answers: Answers) -> Way:
    number, rows_number = answers["generation"]
    return Way(number, rows_number == number)
