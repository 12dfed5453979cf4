"""A worker process: one loop that reports, claims and in_flight over.

Batches form by themselves: while one write is under way, the next outcomes gather. An idle
system answers at once, a busy one commits in groups. The loop sleeps until a slot ends, a
wake-up call arrives, or a signal. Other threads only leave word and ring the wakeup: whatever
is written or claimed is by the loop.

What the steps do is in modules of their own; here is their order, and the few marks by which one
step knows of another. So it is one piece, though a long one.
"""

from __future__ import annotations

import logging
import signal
import uuid
from collections.abc import Callable

from django.db import connections

from queue_app.core.records import ProgressReport
from queue_app.exceptions import IndexNotReady, UnknownProfile
from queue_app.index import Profile
from queue_app.workers import capture, transport
from queue_app.workers.backoff import ErrorBackoff
from queue_app.workers.claimer import Claimer, TaskDiscovery
from queue_app.workers.deadlines import enforce, next_due
from queue_app.workers.executor import Executor
from queue_app.workers.health import LoopHeartbeat
from queue_app.workers.heartbeat import Heartbeat
from queue_app.workers.identity import identify
from queue_app.workers.in_flight import InFlight
from queue_app.workers.lifecycle import DUMP, HURRY, QUIET, Exit, Wakeup, dump, guard, on_signals
from queue_app.workers.options import WorkerOptions
from queue_app.workers.pools import make_pool
from queue_app.workers.pools.base import Pool
from queue_app.workers.progress import Attempt, ProgressReports
from queue_app.workers.shutdown import Shutdown
from queue_app.workers.transport import make_due, rebuild_if_needed, wake_idle_workers
from queue_app.workers.wake_listener import WakeListener

logger = logging.getLogger("taskqueue")


class Worker:
    """Claims tasks for its slots until it is told to stop."""

    def __init__(
        self, options: WorkerOptions, worker_id: uuid.UUID | None = None, supervisor: int | None = None
    ) -> None:
        self.options = options
        self.id = worker_id or uuid.uuid4()
        self.loop_heartbeat = LoopHeartbeat()
        self._supervised = supervisor is not None
        self._called = False  # whether the index called this worker, and it has not yet claimed
        self._told = False  # whether a task in here may have been cancelled
        self._wakeup = Wakeup()
        self._shutdown = Shutdown(options.grace_seconds)
        self._backoff = ErrorBackoff(options.name)
        self._in_flight = InFlight()
        self._reports = ProgressReports(self._wakeup.set)
        self._ended: set[Attempt] = set()  # attempts that may have left something on the reports
        self._unsaid: list[ProgressReport] = []  # taken from there, and not yet stored
        self._pool = self._make_pool()
        self._discovery = TaskDiscovery(options, self.id, self._pool.can_run)
        self._claimer = Claimer(options, self.id, self._in_flight, self._pool)
        self._heartbeat = Heartbeat(options.heartbeat_seconds, self._beat, self._lose, supervisor)
        self._wake_listener = WakeListener(self.id, self._wake)

    def _make_pool(self) -> Pool:
        return make_pool(self.options, Executor(self.id, self._reports), self._wakeup.set)

    @property
    def profile(self) -> Profile:
        """What it claims: queues, task types, capabilities."""
        return self._discovery.profile

    # -- life ------------------------------------------------------------------

    def run(self) -> Exit:
        """Work until a signal, ``max_tasks``, or the end of a burst; return the exit code."""
        stop = self.drain if self._supervised else self.stop
        handlers = {signal.SIGTERM: stop, signal.SIGINT: stop, HURRY: self.hurry, DUMP: self.dump, QUIET: self.quiet}
        with on_signals(handlers):
            if not self._try(self._register):
                return Exit.UNREACHABLE
            capture.install()
            guard()
            self._pool.start()
            self._heartbeat.start()
            self._wake_listener.start()
            self._introduce()
            while True:
                self.run_once()
                if self._finished():
                    return self._leave()
                self._wakeup.wait(self._patience())

    def _register(self) -> None:
        transport.register(
            identify(self.id, self.options.name),
            self.profile,
            concurrency=self.options.concurrency,
            heartbeat_seconds=self.options.heartbeat_seconds,
        )

    def _introduce(self) -> None:
        """Say what this worker runs, and what it does not."""
        types, slots, name = len(self.profile.task_types), self.options.concurrency, self.options.name
        logger.info("worker %s runs %d task types in %d slots (%s)", name, types, slots, self._pool.name)
        refused = self._discovery.refused
        if refused:
            names = ", ".join(refused)
            logger.warning("worker %s leaves to others what its pool cannot run: %s", name, names)

    def stop(self) -> None:
        """Drain; the second time, leave at once."""
        if self._shutdown.draining:
            self.hurry()
        else:
            self.drain()

    def drain(self) -> None:
        """Claim nothing more, give back what has not started, and leave when what runs has ended."""
        self._shutdown.drain()
        self._wakeup.set()

    def quiet(self) -> None:
        """Claim nothing more, give back what has not started, and stay."""
        self._shutdown.quiet = True
        self._wakeup.set()

    def dump(self) -> None:
        """Write what runs, with stacks, to the standard error."""
        dump(self.options.name, self._pool.running(), self._pool.unstarted)

    def hurry(self) -> None:
        """Give back what runs too, and leave."""
        self._shutdown.hurry()
        self._wakeup.set()

    def run_once(self) -> None:
        """Report what has ended and claim what fits: one step of the loop."""
        self.loop_heartbeat.beat()
        self._gather()
        if self._backoff.pause:
            return
        try:
            self._say()  # before the outcomes: what an attempt said last is stored while it holds its task
            if self._in_flight.report():
                self._claimer.should_claim = True
            self._in_flight.give_back()
            self._interrupt()
            if self._shutdown.wanted or self._shutdown.quiet:
                self._give_back_unstarted()
            else:
                self._claimer.return_unacknowledged()
                self._learn()
                self._claimer.give_back_stalled()
                self._claim()
                self._look_for_due()
            self._pass_on()
        except Exception as error:  # noqa: BLE001 - told apart, and logged, there
            self._recover(error)
        else:
            self._backoff.forget()

    # -- steps -----------------------------------------------------------------

    def _gather(self) -> None:
        for outcome in self._pool.take_outcomes():
            self._in_flight.note(outcome)
            self._ended.add((outcome.task.id, outcome.task.attempt))
            self._claimer.observe(outcome.task.task_type, (outcome.finished_at - outcome.started_at).total_seconds())

    def _say(self) -> None:
        """Store what attempts said."""
        ended, self._ended = self._ended, set()
        self._unsaid += self._reports.take(ended)
        if self._unsaid:
            transport.note(self._unsaid)
            self._unsaid = []

    def _interrupt(self) -> None:
        """End attempts that are past their timeout or were cancelled; give up on what does not end."""
        cancelled: set[uuid.UUID] = set()
        if self._told and self._pool.running():
            self._told = False
            cancelled = transport.cancel_requests(self.id)
        for outcome in enforce(self._pool, cancelled):
            self._in_flight.note(outcome)

    def _give_back_unstarted(self) -> None:
        self._in_flight.put_back(self._pool.take_unstarted())
        self._in_flight.give_back()

    def _learn(self) -> None:
        if self._discovery.discover():
            self._claimer.should_claim = True

    def _room(self) -> int:
        return 0 if self._shutdown.wanted or self._shutdown.quiet else self._claimer.room()

    def _claim(self) -> None:
        self._claimer.look_at_the_clock()
        if self._claimer.should_claim and self._room() > 0:
            self._called = False  # before the claim: a call that follows it is another one
            self._claimer.claim(self.profile)

    def _pass_on(self) -> None:
        """Let another worker have the call that came while this one takes nothing."""
        if self._called and self._room() <= 0:
            self._called = False
            wake_idle_workers()

    def _look_for_due(self) -> None:
        """Queue what is due before a burst ends."""
        if self.options.burst and not self._in_flight and not self._claimer.should_claim:
            self._claimer.should_claim = make_due() > 0

    def _recover(self, error: Exception) -> None:
        """Wait a moment, and mend what can be mended from here."""
        self._claimer.should_claim = True
        self._backoff.begin()
        try:
            if isinstance(error, UnknownProfile):
                transport.register_again(self.profile, self.id)
                self._backoff.mended()
            elif isinstance(error, IndexNotReady):
                if rebuild_if_needed() is not None:
                    self._backoff.mended()
            else:
                self._backoff.complain(error)
        except Exception as again:  # noqa: BLE001 - logged there
            self._backoff.complain(again)

    # -- ending ----------------------------------------------------------------

    def _finished(self) -> bool:
        """Whether the loop is over."""
        if self._shutdown.is_now:
            return True
        if self._in_flight or self._in_flight.is_pending:
            return False
        if self._shutdown.wanted:
            return True
        if self.options.max_tasks is not None and self._in_flight.claimed >= self.options.max_tasks:
            return True
        return self.options.burst and not self._claimer.should_claim and not self._claimer.refills_soon

    def _leave(self) -> Exit:
        """Report what has ended, give back what has not, and say goodbye."""
        self._heartbeat.stop()
        self._wake_listener.stop()
        self._in_flight.put_back(self._pool.take_unstarted())
        self._pool.stop()
        self._gather()
        running = self._in_flight.running()
        self._in_flight.put_back(running)
        # Each step for itself: an outcome that cannot be written must not keep the others in here.
        unacknowledged = self._claimer.return_unacknowledged
        steps = (
            self._say,
            self._in_flight.report,
            self._in_flight.give_back,
            unacknowledged,
            self._pass_on,
            self._say_goodbye,
        )
        failed = [step for step in steps if not self._try(step)]
        connections.close_all()
        why = f": {self._shutdown.lost}" if self._shutdown.lost else ""
        logger.info("worker %s leaves after %d tasks%s", self.options.name, self._in_flight.done, why)
        return self._shutdown.code(failed=bool(failed), gave_back=bool(running))

    def _try(self, step: Callable[[], object]) -> bool:
        try:
            step()
        except Exception as error:  # noqa: BLE001 - one line about it is enough, the worker leaves
            what = step.__name__.strip("_").replace("_", " ")
            logger.error("worker %s cannot %s: %s", self.options.name, what, " ".join(str(error).split()))  # noqa: TRY400
            return False
        return True

    def _say_goodbye(self) -> None:
        transport.deregister(self.id, self.profile, tasks_done=self._in_flight.done)

    # -- called from other threads ----------------------------------------------

    def _wake(self, *, called: bool) -> None:
        self._claimer.should_claim = True
        self._called = self._called or called
        self._told = self._told or called
        self._wakeup.set()

    def _beat(self) -> bool:
        alive = transport.heartbeat(self.id, draining=self._shutdown.draining, tasks_done=self._in_flight.done)
        if alive and not self._shutdown.draining and transport.is_asked_to_drain(self.id):
            logger.info("worker %s was asked to drain", self.options.name)
            self.drain()
        self._discovery.requested = self._told = True
        self._wakeup.set()
        return alive

    def _lose(self, why: str) -> None:
        logger.error("worker %s stops: %s", self.options.name, why)
        self._shutdown.lost = why
        self._wakeup.set()

    def _patience(self) -> float | None:
        """Return how long the loop may sleep; ``None`` until something happens."""
        times: list[float] = []
        if self._backoff.pause:
            times.append(self._backoff.pause)
        elif self._in_flight.is_pending or (self._claimer.should_claim and self._room() > 0):
            return 0
        if self._pool.unstarted:
            times.append(self._claimer.prefetch.patience)
        if self._claimer.refill_in is not None and self._room() > 0:
            times.append(self._claimer.refill_in)
        unsaid = self._reports.due_in()
        if unsaid is not None:
            times.append(unsaid)
        due = next_due(self._pool)
        if due is not None:
            times.append(0 if self._told else due)
        if self._shutdown.remaining is not None:
            times.append(self._shutdown.remaining)
        return min(times) if times else None
