"""The scheduler: due tasks, fallback wake-up calls, dead workers, repair of the index.

Several may run; one leads by a lock that lapses. Every job is idempotent and safe twice at
once, so leadership only spares work: while Redis is away there is no lock to hold, and the
jobs on the rows go on. The lock is renewed a few times before it would lapse; a leader that
lost it goes on until then, beside another, which costs work and nothing else.

Jobs that are due at about the same time have one turn. Most find nothing most of the time, and
one look at the rows says so for all of them (``services.look``).
"""

from __future__ import annotations

import logging
import signal
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field

from django.db import Error as DatabaseError
from django.db import connections

from queue_app import conf
from queue_app.exceptions import IndexUnavailable
from queue_app.services import requests
from queue_app.services.control.pause import resume_due
from queue_app.services.operations.advance import run_operations
from queue_app.services.repair.reap import Reaper, reap_overdue
from queue_app.services.repair.rebuild import is_needed as rebuild_is_needed
from queue_app.services.repair.rebuild import rebuild_if_needed
from queue_app.services.repair.reconcile import Reconciler
from queue_app.services.upkeep.jobs import Answers, pending_work, resign, take_lead, wake_idle_workers
from queue_app.services.upkeep.maintenance import is_overdue, purge, run_overdue
from queue_app.services.upkeep.promote import DUE_BATCH, make_due
from queue_app.workers.health import LoopHeartbeat
from queue_app.workers.lifecycle import Exit, Wakeup, on_signals

logger = logging.getLogger("taskqueue")

#: So long, at least, jobs that need the index wait after it could not be reached.
INDEX_RETRY_SECONDS = 0.5
#: A loop that has not turned for so long hangs. Jobs are bounded; a rebuild of millions of rows takes the longest.
STALE_SECONDS = 900.0
#: So long the scheduler queues what is due in one turn: dead workers, and a lost index, do not wait for millions.
DUE_SECONDS = 1.0
#: So long the scheduler deletes in one turn: what is due meanwhile waits.
PURGE_SECONDS = 0.3
#: So long a new leader leaves upkeep alone: it reads much, and a start or a failover has more urgent work.
UPKEEP_AFTER_SECONDS = 10.0
#: What is due so soon has its turn now: one look for many, and no turn for each.
TOGETHER_SECONDS = 0.1
#: So often the leader renews its lock in the time after which it would lapse.
RENEWALS = 5


@dataclass(slots=True)
class Job:
    """Something to do every ``interval`` seconds; ``due_at`` is monotonic time.

    An action that returns ``True`` has left work, and has its next turn once the others had theirs.
    One that would find nothing, by the answers to what the job asks of a look, is not called.
    """

    name: str
    interval: float
    action: Callable[[], object]
    due_at: float = 0.0
    failing: bool = field(default=False)
    needs_index: bool = False  # nothing can be done without Redis
    has_more: bool = field(default=False)
    asks: tuple[str, ...] = ()  # questions of a look; the action is called when one is answered with yes,
    is_wanted: Callable[[Answers], bool] | None = None  # or by what this makes of the answers

    def run_once(self, answers: Answers | None = None) -> bool:
        """Run the job, without answers in any case; return whether the index answered, as far as it was asked.

        A failure is logged once, and the job is tried again at its next turn.
        """
        self.has_more = False
        try:
            self.has_more = self._may_find_work(answers) and self.action() is True
        except (IndexUnavailable, DatabaseError) as error:
            if not self.failing:
                logger.warning("%s failed: %s", self.name, " ".join(str(error).split()))
            self.failing = True
            if isinstance(error, IndexUnavailable):
                return False
            connections.close_all()
        except Exception:
            if not self.failing:
                logger.exception("%s failed", self.name)
            self.failing = True
        else:
            self.failing = False
        return True

    def _may_find_work(self, answers: Answers | None) -> bool:
        if answers is None or not self.asks:
            return True
        return self.is_wanted(answers) if self.is_wanted else any(answers[name] for name in self.asks)


class Scheduler:
    """Runs the jobs while it leads."""

    def __init__(self, *, with_maintenance: bool = False) -> None:
        settings = conf.get().scheduler
        self.token = uuid.uuid4().hex
        self.leader_seconds = settings.leader_seconds
        self.leads = False
        self._with_maintenance = with_maintenance
        self._purging = False
        self._stopping = False
        self._index_is_away = False
        self._index_back_at = 0.0  # monotonic time before which nothing is asked of the index
        self._renew_at = 0.0  # monotonic time at which the lock is to be renewed
        self._answers: Answers | None = None  # of the look of this turn
        self._questions: set[str] = set()
        self._look = Job("look", 0.0, self._look_around)  # never due by itself
        self._wakeup = Wakeup()
        self.loop_heartbeat = LoopHeartbeat()
        reconciler, reaper = Reconciler(), Reaper()
        self._upkeep = [
            Job("maintenance", settings.maintenance_seconds, self._maintain),
            Job("purge", settings.maintenance_seconds, self._purge),
        ]
        self.jobs = [
            Job(
                "rebuild",
                settings.due_seconds,
                self._rebuild,
                needs_index=True,
                asks=("generation",),
                is_wanted=lambda answers: rebuild_is_needed(answers["generation"]),
            ),
            Job("due", settings.due_seconds, _make_all_due, asks=("due",)),
            Job("requests", settings.due_seconds, requests.consume, needs_index=True),
            Job("reap", settings.reap_seconds, reaper.run_once, asks=reaper.QUESTIONS, is_wanted=reaper.is_wanted),
            Job("overdue", settings.reap_seconds, reap_overdue, asks=("overdue",)),
            Job("resume", settings.reap_seconds, resume_due, asks=("pauses",)),
            Job("operations", settings.reap_seconds, run_operations, asks=("operations",)),
            Job("reconcile", settings.reconcile_seconds, reconciler.run_once, needs_index=True),
            Job("fallback", settings.fallback_seconds, wake_idle_workers, needs_index=True),
            *self._upkeep,
        ]

    def run(self) -> Exit:
        """Run until SIGTERM or SIGINT."""
        with on_signals({signal.SIGTERM: self.stop, signal.SIGINT: self.stop}):
            while not self._stopping:
                self.loop_heartbeat.beat()
                self.run_once()
                self._wakeup.wait(self._next_at() - time.monotonic())
            self._resign()
            connections.close_all()
        return Exit.OK

    def stop(self) -> None:
        """Leave after the job under way."""
        self._stopping = True
        self._wakeup.set()

    def run_once(self) -> list[str]:
        """Run the jobs that are due, if this scheduler leads; return their names."""
        ran: list[str] = []
        if not self._lead():
            return ran
        soon = time.monotonic() + TOGETHER_SECONDS
        due = [job for job in self.jobs if job.due_at <= soon]
        self._questions = {name for job in due for name in job.asks}
        self._answers = None
        self._look.run_once()  # where it fails nothing is known, and every job looks for itself
        for job in due:
            began = time.monotonic()
            if self._stopping:
                break
            if job.needs_index and self._index_back_at > began:
                job.due_at = self._index_back_at
                continue
            if not job.run_once(self._answers):
                self._miss_index(began)
            self.loop_heartbeat.beat()
            job.due_at = time.monotonic() + (0 if job.has_more else job.interval)
            ran.append(job.name)
        return ran

    def _look_around(self) -> None:
        if self._questions:
            self._answers = pending_work(self._questions)

    def _rebuild(self) -> None:
        rebuild_if_needed()
        self._renew_at = 0.0  # an index that was lost had the lock in it

    def _maintain(self) -> None:
        run_overdue("promote", "expire", "snapshot", every=self._with_maintenance)

    def _purge(self) -> bool:
        """Delete for a moment; where that was not enough, go on at the next turn, or after a failure in its time."""
        if self._purging or self._with_maintenance or is_overdue("purge"):
            self._purging, began = False, time.monotonic()
            purge(seconds=PURGE_SECONDS)
            self._purging = time.monotonic() >= began + PURGE_SECONDS
        return self._purging

    def _miss_index(self, since: float) -> None:
        """Ask nothing of the index for a while, so that the jobs on the rows have their turns.

        One that does not answer costs ``SOCKET_SECONDS`` each time: a third of the time at most.
        """
        now = time.monotonic()
        self._index_back_at = now + max(INDEX_RETRY_SECONDS, 2 * (now - since))
        self._renew_at = 0.0  # who leads may be another by then, and is the first question

    def _next_at(self) -> float:
        if not self.leads:
            return time.monotonic() + self.leader_seconds / 3
        return min(job.due_at for job in self.jobs)

    def _lead(self) -> bool:
        began = time.monotonic()
        if self._index_back_at > began or (self.leads and self._renew_at > began + TOGETHER_SECONDS):
            return True
        try:
            leads = take_lead(self.token, self.leader_seconds)
        except IndexUnavailable as error:
            if not self._index_is_away:
                logger.warning("the jobs on the rows go on without the index: %s", " ".join(str(error).split()))
            self._index_is_away = True
            self._miss_index(began)
            leads = True
        else:
            self._index_is_away = False
            self._renew_at = began + self.leader_seconds / RENEWALS
        if leads != self.leads:
            logger.info("scheduler %s %s", self.token[:8], "leads" if leads else "stands by")
            self.leads = leads
            for job in self._upkeep:
                job.due_at = max(job.due_at, began + UPKEEP_AFTER_SECONDS)
        return leads

    def _resign(self) -> None:
        try:
            resign(self.token)
        except IndexUnavailable:
            logger.info("the leadership lapses by itself")


def _make_all_due() -> bool:
    """Queue what is due, for a moment; return whether there may be more."""
    until = time.monotonic() + DUE_SECONDS
    while make_due() == DUE_BATCH:
        if time.monotonic() >= until:
            return True
    return False
