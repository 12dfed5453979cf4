"""A worker process: one loop that reports, claims and hands over.

Batches form by themselves: while one write is under way, the next outcomes gather. An idle
system answers at once, a busy one commits in groups. The loop sleeps until a slot ends, a
wake-up call arrives, or a signal. Other threads only leave word and ring the bell: whatever
is written or claimed is by the loop.
"""

from __future__ import annotations

import logging
import signal
import time
import uuid
from collections.abc import Callable

from django.db import Error as DatabaseError
from django.db import connections

from queue_app import registry
from queue_app.exceptions import IndexNotReady, IndexUnavailable, UnknownProfile
from queue_app.index import MAX_CLAIM, Profile
from queue_app.services import workers as service
from queue_app.services.claim import claim
from queue_app.services.due import make_due
from queue_app.services.leader import wake_forgotten
from queue_app.services.rebuild import rebuild_if_needed
from workers.bell import Bell
from workers.deadlines import enforce, next_due
from workers.executor import Executor, Held
from workers.hands import Hands
from workers.heartbeat import Heartbeat
from workers.identity import identify
from workers.lifecycle import HURRY, Exit, on_signals
from workers.look_ahead import LookAhead
from workers.options import WorkerOptions
from workers.pools.threads import ThreadPool
from workers.waker import Waker

logger = logging.getLogger("taskqueue")

#: Seconds between tries while PostgreSQL or Redis does not answer, or the index is rebuilt.
RETRY_SECONDS = 0.5


class Worker:
    """Claims tasks for its slots until it is told to stop."""

    def __init__(
        self, options: WorkerOptions, worker_id: uuid.UUID | None = None, supervisor: int | None = None
    ) -> None:
        self.options = options
        self.id = worker_id or uuid.uuid4()
        self.profile = self._make_profile()
        self._bell = Bell()
        self._look_ahead = LookAhead(options.look_ahead_ms, options.concurrency)
        self._pool = ThreadPool(options.concurrency, Executor(self.id), self._bell.ring)
        self._heartbeat = Heartbeat(options.heartbeat_seconds, self._beat, self._lose, supervisor)
        self._waker = Waker(self.id, self._wake)
        self._supervised = supervisor is not None
        self._hands = Hands()
        self._hungry = True  # whether the next claim may find something
        self._called = False  # whether the index called this worker, and it has not yet claimed
        self._curious = False  # whether to look for unknown task types that wait
        self._unlearnable: set[str] = set()  # types whose modules break when imported
        self._told = False  # whether a task in here may have been cancelled
        self._strays = False  # whether a claim may have been granted without an answer
        self._not_before = 0.0  # monotonic time before which nothing is claimed or reported
        self._trouble = ""  # what was last logged about it
        self._last_progress = time.monotonic()
        self._stops = 0  # stop signals so far
        self._stop_at: float | None = None
        self._lost = ""

    # -- life ------------------------------------------------------------------

    def run(self) -> Exit:
        """Work until a signal, ``max_tasks``, or an empty queue in burst mode; return the exit code."""
        stop = self.drain if self._supervised else self.stop
        with on_signals({signal.SIGTERM: stop, signal.SIGINT: stop, HURRY: self.hurry}):
            if not self._try(self._register):
                return Exit.UNREACHABLE
            self._pool.start()
            self._heartbeat.start()
            self._waker.start()
            logger.info("worker %s runs %d task types in %d slots", self.options.name, *self._size())
            while True:
                self.run_once()
                if self._finished():
                    return self._leave()
                self._bell.wait(self._patience())

    def _register(self) -> None:
        service.register(
            identify(self.id, self.options.name),
            self.profile,
            concurrency=self.options.concurrency,
            heartbeat_seconds=self.options.heartbeat_seconds,
        )

    def _size(self) -> tuple[int, int]:
        return len(self.profile.task_types), self.options.concurrency

    def stop(self) -> None:
        """Drain; the second time, leave at once."""
        if self._stops:
            self.hurry()
        else:
            self.drain()

    def drain(self) -> None:
        """Claim nothing more, give back what has not started, and leave when what runs has ended."""
        self._stops = max(self._stops, 1)
        if self._stop_at is None:
            self._stop_at = time.monotonic() + self.options.grace_seconds
        self._bell.ring()

    def hurry(self) -> None:
        """Give back what runs too, and leave."""
        self._stops = 2
        self._bell.ring()

    def run_once(self) -> None:
        """Report what has ended and claim what fits: one step of the loop."""
        self._gather()
        if time.monotonic() < self._not_before:
            return
        try:
            if self._hands.report():
                self._hungry = True
            self._hands.give_back()
            self._interrupt()
            if self._stops or self._lost:
                self._give_back(self._pool.take_unstarted())
            else:
                self._return_strays()
                self._learn()
                self._relieve()
                self._claim()
                self._look_for_due()
            self._pass_on()
        except Exception as error:  # noqa: BLE001 - told apart, and logged, there
            self._recover(error)
        else:
            self._trouble = ""

    # -- steps -----------------------------------------------------------------

    def _gather(self) -> None:
        for outcome in self._pool.take_outcomes():
            self._hands.note(outcome)
            seconds = (outcome.finished_at - outcome.started_at).total_seconds()
            self._look_ahead.observe(outcome.task.task_type, seconds)
            self._last_progress = time.monotonic()

    def _interrupt(self) -> None:
        """End attempts that are past their timeout or were cancelled; give up on what does not end."""
        cancelled: set[uuid.UUID] = set()
        if self._told and self._pool.running():
            self._told = False
            cancelled = service.cancel_requests(self.id)
        for outcome in enforce(self._pool, cancelled):
            self._hands.note(outcome)

    def _room(self) -> int:
        """Return how many tasks may be claimed: for free slots, and ahead where tasks are quick."""
        if self._stops or self._lost:
            return 0
        room = min(MAX_CLAIM, self._free() + self._look_ahead.allowance())
        return room if self.options.max_tasks is None else min(room, self.options.max_tasks - self._hands.claimed)

    def _free(self) -> int:
        return self.options.concurrency - len(self._hands)

    def _claim(self) -> None:
        free, want = self._free(), self._room()
        if want <= 0 or not self._hungry:
            return
        self._hungry = self._called = False  # before the claim: a wake-up call that follows it must not be lost
        try:
            tasks = claim(self.profile, self.id, want)
        except DatabaseError:
            self._strays = True
            raise
        if not tasks:
            return
        now = time.monotonic()
        if len(tasks) == want:
            self._hungry = True
        if not self._pool.unstarted:  # else what waits has waited since then already
            self._last_progress = now
        held = [Held(task, now) for task in tasks]
        self._hands.take(held)
        ahead = held[max(free, 0) :]
        surplus = [item for item in ahead if not self._look_ahead.is_quick(item.task.task_type)]
        if surplus:  # slow or unknown: somebody else may have a free slot
            refused = {item.task.id for item in surplus}
            held = [item for item in held if item.task.id not in refused]
            for item in surplus:
                self._look_ahead.distrust(item.task.task_type)
        self._pool.submit(held)
        self._give_back(surplus)

    def _relieve(self) -> None:
        """Give back what waits in here while every slot is busy with something unexpectedly long."""
        if self._pool.unstarted and time.monotonic() - self._last_progress > self._look_ahead.patience:
            for held, seconds in self._pool.running():
                self._look_ahead.observe(held.task.task_type, seconds)
            self._give_back(self._pool.take_unstarted())

    def _give_back(self, held: list[Held]) -> None:
        self._hands.put_back(held)
        self._hands.give_back()

    def _return_strays(self) -> None:
        """Give back what a claim was granted whose answer never arrived: the connection broke in between."""
        if self._strays:
            self._hands.give_back_strays(self.id)
            self._strays = False

    def _pass_on(self) -> None:
        """Let another worker have the call that came while this one takes nothing."""
        if self._called and self._room() <= 0:
            self._called = False
            wake_forgotten()

    def _look_for_due(self) -> None:
        """Queue what is due before a burst ends."""
        if self.options.burst and not self._hands and not self._hungry:
            self._hungry = make_due() > 0

    def _learn(self) -> None:
        """Look for task types that wait but are not known here yet; serve those that the code has."""
        if not self._curious:
            return
        self._curious = False
        learnt = [name for name in sorted(service.unserved_types(self.profile)) if self._import(name)]
        if learnt:
            before, self.profile = self.profile, self._make_profile()
            service.change_profile(self.id, before, self.profile)
            self._hungry = True
            logger.info("worker %s learnt %s", self.options.name, ", ".join(learnt))

    def _import(self, task_type: str) -> bool:
        if task_type in self._unlearnable:
            return False
        try:
            return registry.learn(task_type)
        except Exception:
            logger.exception("the module of %s cannot be imported", task_type)
            self._unlearnable.add(task_type)
            return False

    def _make_profile(self) -> Profile:
        return Profile.of(self.options.queues, registry.known_types(), self.options.capabilities)

    def _recover(self, error: Exception) -> None:
        """Wait a moment, and mend what can be mended from here."""
        self._hungry = True
        self._not_before = time.monotonic() + RETRY_SECONDS
        try:
            if isinstance(error, UnknownProfile):
                service.register_in_index(self.profile, self.id)
                self._not_before = 0.0
            elif isinstance(error, IndexNotReady):
                if rebuild_if_needed() is not None:
                    self._not_before = 0.0
            else:
                self._complain(error)
        except Exception as again:  # noqa: BLE001 - logged there
            self._complain(again)

    def _complain(self, error: Exception) -> None:
        """Log what went wrong, once while it stays the same."""
        if not isinstance(error, IndexUnavailable):
            connections.close_all()
        text = " ".join(str(error).split())
        if text == self._trouble:
            return
        self._trouble = text
        if isinstance(error, IndexUnavailable | DatabaseError):
            logger.warning("%s; trying again", text)
        else:
            logger.error("worker %s stumbled; trying again", self.options.name, exc_info=error)

    # -- ending ----------------------------------------------------------------

    def _finished(self) -> bool:
        """Whether the loop is over."""
        if self._lost or self._must_leave():
            return True
        if self._hands or self._hands.is_pending:
            return False
        if self._stops or (self.options.max_tasks is not None and self._hands.claimed >= self.options.max_tasks):
            return True
        return self.options.burst and not self._hungry

    def _must_leave(self) -> bool:
        return self._stops > 1 or (self._stop_at is not None and time.monotonic() >= self._stop_at)

    def _leave(self) -> Exit:
        """Report what has ended, give back what has not, and say goodbye."""
        self._heartbeat.stop()
        self._waker.stop()
        self._hands.put_back(self._pool.take_unstarted())
        self._pool.stop()
        self._gather()
        running = self._hands.running()
        self._hands.put_back(running)
        # Each step for itself: an outcome that cannot be written must not keep the others in here.
        steps = (self._hands.report, self._hands.give_back, self._return_strays, self._pass_on, self._say_goodbye)
        failed = [step for step in steps if not self._try(step)]
        connections.close_all()
        done = self._hands.done
        logger.info("worker %s leaves after %d tasks%s", self.options.name, done, f": {self._lost}" * bool(self._lost))
        if failed:
            return Exit.CRASHED
        if self._lost:
            return Exit.LOST
        return Exit.GAVE_BACK if running else Exit.OK

    def _try(self, step: Callable[[], object]) -> bool:
        try:
            step()
        except Exception as error:  # noqa: BLE001 - one line about it is enough, the worker leaves
            what = step.__name__.strip("_").replace("_", " ")
            logger.error("worker %s cannot %s: %s", self.options.name, what, " ".join(str(error).split()))  # noqa: TRY400
            return False
        return True

    def _say_goodbye(self) -> None:
        service.deregister(self.id, self.profile, tasks_done=self._hands.done)

    # -- called from other threads ----------------------------------------------

    def _wake(self, *, called: bool) -> None:
        self._hungry = True
        self._called = self._called or called
        self._told = self._told or called
        self._bell.ring()

    def _beat(self) -> bool:
        alive = service.heartbeat(self.id, draining=bool(self._stops), tasks_done=self._hands.done)
        self._curious = self._told = True
        self._bell.ring()
        return alive

    def _lose(self, why: str) -> None:
        logger.error("worker %s stops: %s", self.options.name, why)
        self._lost = why
        self._bell.ring()

    def _patience(self) -> float | None:
        """Return how long the loop may sleep; ``None`` until something happens."""
        now = time.monotonic()
        times: list[float] = []
        if self._not_before > now:
            times.append(self._not_before - now)
        elif self._hands.is_pending or (self._hungry and self._room() > 0):
            return 0
        if self._pool.unstarted:
            times.append(self._look_ahead.patience)
        due = next_due(self._pool)
        if due is not None:
            times.append(0 if self._told else due)
        if self._stop_at is not None:
            times.append(max(0.0, self._stop_at - now))
        return min(times) if times else None
