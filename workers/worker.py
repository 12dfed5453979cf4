"""A worker process: it registers, turns its loop, reacts to signals, and exits in order."""

import logging
import signal
import uuid
from collections import Counter
from collections.abc import Callable, Sequence

from django.db import connections

from queue_app.core.ids import uuid7
from queue_app.core.records import WorkerReport
from queue_app.exceptions import IndexUnavailable, in_one_line
from queue_app.logs import ATTRIBUTE
from queue_app.services.repair.rebuild import release_at_exit
from queue_app.workers import progress
from queue_app.workers.background import Heartbeat, SchedulerThread, WakeListener
from queue_app.workers.context import ClaimedAttempt
from queue_app.workers.lifecycle import DUMP, HURRY, QUIET, Exit, dump, guard_forks, on_hangup, on_signals
from queue_app.workers.loop import WorkerLoop
from queue_app.workers.options import WorkerOptions, identify
from queue_app.workers.resources import UsageMeter
from queue_app.workers.summary import counted
from queue_app.workers.transport.base import Transport

logger = logging.getLogger("taskqueue")

#: Maximum number of task types that a line names.
NAMED = 5
#: Heartbeats without a leading scheduler after which the worker warns.
PATIENCE_BEATS = 2


class Worker(WorkerLoop):
    """Claims and runs tasks until it is asked to stop."""

    def __init__(
        self,
        options: WorkerOptions,
        transport: Transport,
        worker_id: uuid.UUID | None = None,
        supervisor: int | None = None,
    ) -> None:
        super().__init__(options, transport, worker_id or uuid7())
        self.is_signalled = False  # whether the worker ends because of a signal
        self._supervisor = supervisor
        self._usage = UsageMeter(lambda: self._pool.pids)
        self._is_drain_logged = self._is_drain_reported = False
        # Its own scheduler leads soon, at the latest when the lead of a dead one has ended.
        self._beats_without_leader = 0 if options.with_scheduler else PATIENCE_BEATS - 1
        self._heartbeat = Heartbeat(options.heartbeat_seconds, self._beat, self._on_lost, supervisor)
        self._wake_listener = WakeListener(self.id, transport, self._wake, self._heartbeat.hurry)
        self._scheduler = SchedulerThread() if options.with_scheduler else None

    # -- start and signals --------------------------------------------------------

    def run(self) -> Exit:
        """Work until a signal, ``max_tasks``, or the end of a burst; return the exit code."""
        handlers = {
            signal.SIGTERM: self.stop,
            signal.SIGINT: self.stop,
            HURRY: self.hurry,
            DUMP: self.dump,
            QUIET: self.quiet,
            **on_hangup(self.hurry),
        }
        with on_signals(handlers):
            if not self._try(self._register):
                return Exit.UNREACHABLE
            progress.install()
            guard_forks()
            if self._supervisor is None:
                self.guard.fork_watcher()
            self._pool.start()
            with self.guard:
                self._heartbeat.start()
                self._wake_listener.start()
                if self.auto_slots:
                    self.auto_slots.start()
                if self._scheduler:
                    self._scheduler.start()
                self._log_start()
                while True:
                    self.run_once()
                    self._report_drain()
                    if self._finished():
                        return self._exit()
                    self._wakeup.wait(self._sleep_seconds())

    def _register(self) -> None:
        self._transport.register(
            identify(self.id, self.options.name, self._supervisor),
            self.profile,
            concurrency=self._claimer.slots,
            heartbeat_seconds=self.options.heartbeat_seconds,
        )

    def _log_start(self) -> None:
        name = self.options.name
        logger.info("worker %s waits for tasks", name)
        if self._discovery.refused:
            names = ", ".join(self._discovery.refused)
            logger.warning("worker %s does not claim task types that its pool cannot run: %s", name, names)

    def _report_drain(self) -> None:
        """Let the row say at once that the worker drains, and the log what it waits for."""
        if self._shutdown.draining and not self._is_drain_reported:
            self._is_drain_reported = True
            self._heartbeat.hurry()
        self._log_drain()

    def _log_drain(self) -> None:
        """Log once what a draining worker waits for; a signal handler must not log."""
        running = self._in_flight.running()
        if self._is_drain_logged or not self._shutdown.draining or not running:
            return
        self._is_drain_logged = True
        if self._shutdown.is_now:  # the next line says what is given back
            return
        logger.info(
            "worker %s finishes %s, %g s at most; Ctrl-C or SIGTERM again gives them back (%s)",
            self.options.name,
            _tasks(len(running)),
            self.options.grace_seconds,
            _named(running),
            extra={ATTRIBUTE: {"event": "Stopping", "running": len(running)}},
        )

    def stop(self) -> None:
        """Drain; when called again, exit at once. A supervisor sends another signal for that."""
        self.is_signalled = True
        if self._shutdown.draining and self._supervisor is None:
            self.hurry()
        else:
            self.drain()

    def drain(self) -> None:
        """Claim nothing more, give back what has not started, and exit when the running attempts have ended."""
        self._shutdown.drain()
        self._wakeup.set()

    def hurry(self) -> None:
        """Give back all tasks, also the running ones, and exit."""
        self.is_signalled = True
        self._shutdown.hurry()
        self._wakeup.set()

    def quiet(self) -> None:
        """Claim nothing more, give back what has not started, and stay."""
        self._shutdown.quiet = True
        self._wakeup.set()

    def dump(self) -> None:
        """Write what runs, with stacks, to the standard error."""
        dump(self.options.name, self._pool.running(), self._pool.unstarted)

    @property
    def slots(self) -> int:
        """The present number of slots; never fewer than run."""
        return max(self._claimer.slots, sum(held.task.weight for held, _ in self._pool.running()))

    def _resize(self) -> None:
        before = self._claimer.slots
        super()._resize()
        if self.auto_slots and self._claimer.slots != before:
            reason = self.auto_slots.state.reason
            logger.debug("worker %s has %d slots now: %s", self.options.name, self._claimer.slots, reason)
            self._heartbeat.hurry()

    # -- the end ---------------------------------------------------------------------

    def _exit(self) -> Exit:
        """Report the last outcomes, give back the tasks that remain, and deregister."""
        if self._scheduler:
            self._scheduler.stop()
        if self.auto_slots:
            self.auto_slots.stop()
        self._heartbeat.stop()
        self._wake_listener.stop()
        self._in_flight.return_later(self._pool.take_unstarted())
        self._gather()
        self._end_stuck()
        self._pool.stop()
        self._gather()
        running = self._in_flight.running()
        self._in_flight.return_later(running)
        steps = (  # tried one by one: an outcome that cannot be written must not keep the other tasks in this worker
            self._store_reports,
            self._in_flight.report,
            self._in_flight.give_back,
            self._claimer.give_back_unacknowledged,
            self._pass_call_on,
            self._deregister,
            release_at_exit,  # a supervised worker ends without the functions of atexit
        )
        failed = [step for step in steps if not self._try(step)]
        connections.close_all()
        self._log_end(running)
        self._shutdown.is_stuck &= not self.is_signalled  # then nothing takes its place
        return self._shutdown.code(failed=bool(failed), gave_back=bool(running))

    def _log_end(self, running: list[ClaimedAttempt]) -> None:
        totals = self._in_flight.summary.totals
        parts = [counted(totals) or "no task has ended"]
        if running:
            parts.append(f"{_tasks(len(running))} given back ({_named(running)})")
        if self._shutdown.lost:
            parts.append(self._shutdown.lost)
        facts = {"event": "Stopping", **totals, "given_back": len(running)}
        logger.info("worker %s has stopped: %s", self.options.name, ", ".join(parts), extra={ATTRIBUTE: facts})

    def _try(self, step: Callable[[], object]) -> bool:
        try:
            step()
        except Exception as error:  # noqa: BLE001 - one line is enough, because the worker exits
            what = step.__name__.strip("_").replace("_", " ")
            logger.error("worker %s cannot %s: %s", self.options.name, what, in_one_line(error))  # noqa: TRY400
            return False
        return True

    def _deregister(self) -> None:
        self._transport.deregister(self.id, self.profile, tasks_done=self._in_flight.done)

    # -- calls from other threads -------------------------------------------------------

    def _wake(self, *, called: bool) -> None:
        self._claimer.should_claim = True
        self._claimer.was_called = self._claimer.was_called or called
        self._check_cancelled = self._check_cancelled or called
        self._wakeup.set()

    def _beat(self) -> bool:
        draining = self._shutdown.draining
        done, free = self._in_flight.done, 0 if self._shutdown.is_closed else self._claimer.free_slots
        slots = self.slots if self.auto_slots else None
        report, held = WorkerReport(draining, done, free, self._usage.read(), slots), self._in_flight.grants
        answer = self._transport.heartbeat(self.id, report, held)
        self._in_flight.lost |= answer.lost
        if answer.is_first:  # PostgreSQL has crashed since the last one, perhaps after this one was begun
            self._in_flight.runs += 1
            self._heartbeat.hurry()
            for attempt, _ in self._pool.running():
                if attempt.extended:  # perhaps once too often: only the reaper goes by the row's deadline
                    self._reports.extend(attempt, attempt.extended)
        if answer.should_drain and not self._shutdown.draining:
            logger.info("worker %s was asked to drain", self.options.name)
            self.drain()
        self._discovery.requested = self._check_cancelled = self._claimer.compare_rows = True
        self._wakeup.set()
        if not self._shutdown.draining:  # else its own scheduler has resigned
            self._look_for_scheduler()
        for attempt in self._in_flight.of(answer.stacks):
            self._reports.stack(attempt, self._pool.stack(attempt))
        return answer.alive

    def _on_recovery(self) -> None:
        self._heartbeat.hurry()  # PostgreSQL may have forgotten what this worker holds

    def _look_for_scheduler(self) -> None:
        """Warn if no scheduler leads: at the first heartbeat; later after two, as a new leader needs some seconds."""
        try:
            why = self._transport.why_unled()
        except IndexUnavailable:  # the loop logs it
            return
        if not why:
            if self._beats_without_leader >= PATIENCE_BEATS:
                logger.info("a scheduler leads now")
            self._beats_without_leader = 0
            return
        self._beats_without_leader += 1
        if self._beats_without_leader == PATIENCE_BEATS:
            logger.warning("%s", why)

    def _on_lost(self, why: str) -> None:
        logger.error("worker %s stops: %s", self.options.name, why)
        self._shutdown.lose(why)
        self._wakeup.set()


def _named(attempts: Sequence[ClaimedAttempt]) -> str:
    counts = Counter(held.task.task_type for held in attempts)
    named = ", ".join(f"{name} {count}" for name, count in counts.most_common(NAMED))
    return named + (f" and {len(counts) - NAMED} more types" if len(counts) > NAMED else "")


def _tasks(count: int) -> str:
    return "1 task" if count == 1 else f"{count} tasks"
