"""The loop of a worker: report outcomes, claim tasks, hand them to a pool.

Batches form by themselves: while the loop writes, the next outcomes gather. An idle worker reports at once, a busy
one in groups. Other threads only set flags and wake the loop; the loop alone writes and claims.
"""

import logging
import time
import uuid

from django.db import Error as DatabaseError, connections

from queue_app.core.records import AttemptKey, ProgressReport
from queue_app.exceptions import IndexNotReady, IndexUnavailable, UnknownProfile, in_one_line
from queue_app.index import Profile
from queue_app.telemetry import log_error, outage_over
from queue_app.workers.claimer import Claimer, TaskDiscovery
from queue_app.workers.context import ClaimedAttempt
from queue_app.workers.deadlines import REPLACE_SECONDS, end_by_force, enforce, must_be_replaced, next_due
from queue_app.workers.executor import Executor
from queue_app.workers.health import LoopHeartbeat, stale_seconds
from queue_app.workers.in_flight import InFlight
from queue_app.workers.lifecycle import Shutdown, Wakeup
from queue_app.workers.options import WorkerOptions
from queue_app.workers.pools import make_pool
from queue_app.workers.pools.base import Pool
from queue_app.workers.process_guard import ProcessGuard
from queue_app.workers.progress import ProgressReports
from queue_app.workers.slot_watch import AutoSlots
from queue_app.workers.transport.base import Transport

logger = logging.getLogger("taskqueue")

#: Seconds between tries while PostgreSQL or Redis does not answer, or the index is rebuilt.
RETRY_SECONDS = 0.5
#: Time for which a capped worker waits for quick tasks to end together.
TOGETHER_SECONDS = 0.002


class WorkerLoop:
    """The parts of a worker, the flags between them, and the order of the steps of one turn."""

    def __init__(self, options: WorkerOptions, transport: Transport, worker_id: uuid.UUID) -> None:
        self.options = options
        self.id = worker_id
        self.loop_heartbeat = LoopHeartbeat()
        self._transport = transport
        self._check_cancelled = False  # whether a caller may have cancelled a running task
        self._wakeup = Wakeup()
        self._shutdown = Shutdown(options.grace_seconds)
        self.guard = ProcessGuard(stale_seconds(options.heartbeat_seconds), self._shutdown)
        self._backoff = ErrorBackoff(options.name)
        self._in_flight = InFlight(transport)
        self._reports = ProgressReports(self._wakeup.set)
        self._ended: set[AttemptKey] = set()  # ended attempts that may have reports to store
        self._unstored: list[ProgressReport] = []  # reports that were taken, but could not be stored yet
        self._pool = self._make_pool()
        self._discovery = TaskDiscovery(options, worker_id, transport, self._pool.can_run)
        self._claimer = Claimer(options, worker_id, transport, self._in_flight, self._pool)
        self.auto_slots = (
            AutoSlots(
                options.auto,
                options.concurrency,
                self._pool,
                self._measure_slots,
                lambda: self._in_flight.done,
                self._wakeup.set,
            )
            if options.auto
            else None
        )

    def _make_pool(self) -> Pool:
        executor = Executor(self.id, self._reports, self.options.name)
        return make_pool(self.options, executor, self._wakeup.set, self._transport)

    @property
    def profile(self) -> Profile:
        """The queues, task types and capabilities that the worker claims for."""
        return self._discovery.profile

    def _measure_slots(self) -> tuple[int, bool]:
        """Return how many slots run a task or have one to report, and whether more may wait. Other threads call it."""
        return self._in_flight.slots - self._pool.unstarted, self._claimer.is_short

    def _resize(self) -> None:
        """Have the number of slots that ``auto_slots`` found."""
        wanted = self.auto_slots.slots if self.auto_slots else self._claimer.slots
        if wanted != self._claimer.slots:
            self._discovery.resize(wanted)
            self._pool.resize(wanted)
            self._claimer.resize(wanted)

    def run_once(self) -> None:
        """Report the outcomes and claim tasks for the free slots: one turn of the loop."""
        self.loop_heartbeat.beat()
        self._gather()
        self._let_others_end()
        if self._backoff.pause:
            return
        try:
            self._store_reports()  # before the outcomes, while the attempts still hold their tasks
            if self._shutdown.is_closed or not self._claimer.turn_over(self._discovery.profile):
                self._claimer.should_claim |= self._in_flight.report()
            self._in_flight.give_back()
            self._interrupt()
            if self._shutdown.is_closed:
                self._give_back_unstarted()
            else:
                self._claimer.give_back_unacknowledged()
                self._resize()
                if self._discovery.discover():
                    self._claimer.should_claim = True
                self._claimer.give_back_stalled()
                self._claimer.claim(self._discovery.profile)
                if self.options.burst and not self._in_flight and not self._claimer.should_claim:
                    self._claimer.should_claim = self._finds_more()  # before the burst ends
            self._pass_call_on()
        except RecursionError:  # a task has lowered the limit of this process, which cannot continue
            raise
        except Exception as error:  # noqa: BLE001 - the backoff logs it
            self._claimer.should_claim = True
            self._backoff.recover(error, self._transport, self.profile, self.id)
        else:
            if self._backoff.reset():
                self._on_recovery()
        self._in_flight.summary.log_if_due(len(self._in_flight))

    def _on_recovery(self) -> None:
        """React to the first turn without an error after others."""

    def _finds_more(self) -> bool:
        """Whether tasks can be claimed that the index did not propose: due ones, and ones that it never learned of.

        The index may have missed tasks while Redis refused writes. Where a scheduler leads, it finds them, unless it
        is the one of this worker, and ends with it.
        """
        if self._transport.make_due():
            return True
        if self._claimer.refills_soon or not (self._transport.why_unled() or self.options.with_scheduler):
            return False
        missing = self._transport.push_missing()
        if missing:
            logger.info("worker %s added %d queued tasks that the index lacked", self.options.name, missing)
        return missing > 0

    def _gather(self) -> None:
        for outcome in self._pool.take_outcomes():
            self._in_flight.record(outcome)
            self._ended.add(outcome.task.key)
            if outcome.is_late:
                self._claimer.should_claim = True
                continue
            self._claimer.observe(outcome.task.task_type, (outcome.finished_at - outcome.started_at).total_seconds())

    def _let_others_end(self) -> None:
        """Let the other tasks of a capped worker end too, if all are quick: else their slots wait for the next turn."""
        if not (self._claimer.is_capped and self._in_flight.is_pending and self._claimer.prefetch.allowance()):
            return
        until = time.monotonic() + TOGETHER_SECONDS
        while self._in_flight.unreported < len(self._in_flight) and (left := until - time.monotonic()) > 0:
            self._wakeup.wait(left)
            self._gather()

    def _store_reports(self) -> None:
        ended, self._ended = self._ended, set()
        self._unstored += self._reports.take(ended)
        if self._unstored:
            self._transport.record_progress(self._unstored)
            self._unstored = []

    def _interrupt(self) -> None:
        """End attempts that are past their timeout, were cancelled, or have lost their tasks.

        Time in which they were frozen does not count.
        """
        if frozen := self.guard.take_frozen():
            logger.warning("worker %s was frozen for %.0f s", self.options.name, frozen)
            for held, _ in self._pool.running():
                held.extended += frozen
                held.interrupted_at += frozen
                self._reports.extend(held, frozen)
        cancelled: set[uuid.UUID] = set()
        if self._check_cancelled and self._pool.running():
            self._check_cancelled = False
            cancelled = self._transport.cancel_requests(self.id, self._in_flight.ids)
        lost = self._in_flight.lost
        if lost:
            unstarted = self._pool.take_unstarted()
            self._in_flight.drop(held.key for held in unstarted if held.key in lost)
            self._pool.submit([held for held in unstarted if held.key not in lost])
        for outcome in enforce(self._pool, cancelled, self._on_stuck, lost):
            self._in_flight.record(outcome)
        if not self._shutdown.wanted and must_be_replaced(self._pool):
            logger.error("worker %s drains, and its process is replaced: a task does not end", self.options.name)
            self._shutdown.is_stuck = True
            self._shutdown.drain()

    def _on_stuck(self, held: ClaimedAttempt) -> None:
        """Keep the task until its function has ended or the process is replaced; the reaper waits for that, too."""
        logger.error(
            "%s %s does not end, and keeps its slot; if it has not ended after %g s, the worker's process is replaced",
            held.task.task_type,
            held.task.id,
            REPLACE_SECONDS,
        )
        self._reports.extend(held, REPLACE_SECONDS + self.options.grace_seconds)

    def _end_stuck(self) -> None:
        """Record the outcomes of the attempts that only the end of the process ends."""
        for held, _ in self._pool.running():
            if held.stuck_at:
                for outcome in end_by_force(self._pool, held):
                    self._in_flight.record(outcome)

    @property
    def _waits_for_stuck(self) -> bool:
        """Whether nothing is left but attempts that are stuck."""
        running = self._pool.running()
        return len(running) == len(self._in_flight) and all(held.stuck_at for held, _ in running)

    def _give_back_unstarted(self) -> None:
        self._in_flight.return_later(self._pool.take_unstarted())
        self._in_flight.give_back()

    def _room(self) -> int:
        return 0 if self._shutdown.is_closed else self._claimer.room()

    def _pass_call_on(self) -> None:
        """Wake another worker if the index called this one while it has no room."""
        if self._claimer.was_called and self._room() <= 0:
            self._claimer.was_called = False
            self._transport.wake_idle_workers()

    def _sleep_seconds(self) -> float | None:
        """Return how long the loop may sleep; ``None``: until something happens."""
        backoff, claimer = self._backoff.pause, self._claimer
        if not backoff and (self._in_flight.is_pending or (claimer.should_claim and self._room() > 0)):
            return 0
        due = next_due(self._pool)
        times = (
            backoff or None,
            claimer.prefetch.max_wait if self._pool.unstarted else None,
            claimer.refill_in if self._room() > 0 else None,
            self._reports.due_in(),
            self._in_flight.summary.due_in(),
            0 if self._check_cancelled and due is not None else due,
            self._shutdown.remaining,
        )
        return min((seconds for seconds in times if seconds is not None), default=None)

    def _finished(self) -> bool:
        """Whether the loop is over."""
        if self._shutdown.is_now or (self._shutdown.is_stuck and self._waits_for_stuck):
            return True
        if self._in_flight or self._in_flight.is_pending:
            return False
        if self._shutdown.wanted:
            return True
        if self.options.max_tasks is not None and self._in_flight.claimed >= self.options.max_tasks:
            return True
        return self.options.burst and not self._claimer.should_claim and not self._claimer.refills_soon


class ErrorBackoff:
    """How the loop reacts to errors: a short pause, a repair where one is possible, and one line in the log."""

    def __init__(self, worker_name: str) -> None:
        self._worker_name = worker_name
        self._not_before = 0.0  # monotonic time of the next try
        self._last = ""

    @property
    def pause(self) -> float:
        """Seconds to wait before the next try; 0 if nothing is wrong."""
        return max(0.0, self._not_before - time.monotonic())

    def recover(self, error: Exception, transport: Transport, profile: Profile, worker_id: uuid.UUID) -> None:
        """Wait for a moment, unless the cause can be repaired."""
        self._not_before = time.monotonic() + RETRY_SECONDS
        try:
            if isinstance(error, UnknownProfile):
                transport.register_again(profile, worker_id)
                self._not_before = 0.0
            elif isinstance(error, IndexNotReady):
                if transport.rebuild_if_needed():
                    self._not_before = 0.0
            else:
                self._log(error)
                if isinstance(error, IndexUnavailable) and transport.leave_redis(str(worker_id), error):
                    self._not_before = 0.0
        except Exception as again:  # noqa: BLE001 - the next line logs it
            self._log(again)

    def reset(self) -> bool:
        """Log the next error even if it is the same as the last: a turn of the loop succeeded in between.

        Returns whether the turn before had failed.
        """
        had_failed, self._last = bool(self._last), ""
        if had_failed:
            logger.info("worker %s works again", self._worker_name)
            outage_over()
        return had_failed

    def _log(self, error: Exception) -> None:
        """Log an error once while it stays the same; close connections that may be broken."""
        if not isinstance(error, IndexUnavailable):
            connections.close_all()
        text = in_one_line(error)
        # While a server is away its errors differ by the step of the turn that failed.
        same = type(error).__name__ if isinstance(error, IndexUnavailable | DatabaseError) else text
        if same == self._last:
            return
        if isinstance(error, IndexUnavailable):
            log_error(error, "%s; trying again", text.rstrip("."))
        elif isinstance(error, DatabaseError):
            log_error(error, "PostgreSQL failed: %s; trying again", text.rstrip("."))
        else:
            logger.error("worker %s failed; trying again", self._worker_name, exc_info=error)
        self._last = same  # after the log: where a handler of the project fails, the next try logs again
