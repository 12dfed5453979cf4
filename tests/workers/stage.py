"""A worker without threads: the test decides when tasks end, and moves the time."""

from __future__ import annotations

import time
import uuid
from collections import deque
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from operator import attrgetter
from types import SimpleNamespace
from typing import Any

from django.db import OperationalError

from queue_app.core.records import Outcome
from queue_app.exceptions import Interruption
from queue_app.registry import type_of
from queue_app.services.upkeep.jobs import leader_lapses
from queue_app.services.worker import registration as service
from queue_app.workers.claimer import Prefetch
from queue_app.workers.context import ClaimedAttempt, record_interruption
from queue_app.workers.executor import Executor
from queue_app.workers.lifecycle import Exit
from queue_app.workers.options import WorkerOptions, identify
from queue_app.workers.outcomes import failed
from queue_app.workers.scheduler import Scheduler
from queue_app.workers.transport.base import DirectTransport
from queue_app.workers.worker import Worker
from tests.support.engine import status
from tests.workers import chores

QUICK, SLOW, ECHO, RAISES = (type_of(t) for t in (chores.quick, chores.slow, chores.echo, chores.raises))


def statuses(*ids: uuid.UUID) -> list[str]:
    """Return the states of tasks."""
    return [status(task_id).value for task_id in ids]


def teach(worker: Worker, kind: str, seconds: float = 0.001) -> None:
    """Record a run time of a type in the worker."""
    worker.claimer.prefetch.observe(kind, seconds)


def away(*_args: Any, **_kwargs: Any) -> None:
    """Stand in for a call to PostgreSQL while it does not answer."""
    raise OperationalError("gone")


class StillPool:
    """The interface of the thread pool; tasks begin and end only when the test says so."""

    name = "still"
    can_kill = False
    kill_after = None
    repeat_after = None
    pids = ()

    def __init__(self, slots: int, executor: Executor) -> None:
        self.slots = slots
        self.waiting: deque[ClaimedAttempt] = deque()
        self.begun: list[ClaimedAttempt] = []
        self.stopped = False
        self.executor = executor
        self._outcomes: list[Outcome] = []

    def resize(self, slots: int) -> None:
        """Have this number of slots."""
        self.slots = slots
        self._begin()

    def lateness(self, seconds: float) -> float:
        """Nothing is late."""
        return 0.0

    def can_run(self, task: Any) -> bool:
        """Run every task."""
        return True

    def start(self) -> None:
        """Nothing to start."""

    def submit(self, held: list[ClaimedAttempt]) -> None:
        """Take tasks; as many begin as there are free slots."""
        self.waiting.extend(held)
        self._begin()

    def _begin(self) -> None:
        while self.waiting and len(self.begun) < self.slots:
            self.begun.append(self.waiting.popleft())

    def finish(self, count: int | None = None) -> None:
        """Run the tasks in the slots to their end, the oldest first."""
        for held in self.begun[:count]:
            self._outcomes.append(self.executor.run(held))
            self.begun.remove(held)
        self._begin()

    def interrupt(self, held: ClaimedAttempt, interruption: type[Interruption]) -> None:
        """End a task in a slot at once."""
        record_interruption(held, interruption)
        self._outcomes.append(failed(held, held.claimed_at, interruption()))
        self.begun.remove(held)
        self._begin()

    def take_outcomes(self) -> list[Outcome]:
        """Return the outcomes since the last call."""
        outcomes, self._outcomes = self._outcomes, []
        return outcomes

    def take_unstarted(self) -> list[ClaimedAttempt]:
        """Take back the tasks that have not begun."""
        unstarted, self.waiting = list(self.waiting), deque()
        return unstarted

    def running(self) -> list[tuple[ClaimedAttempt, float]]:
        """Return the running attempts, and for how long each has run."""
        now = time.monotonic()
        return [(held, now - held.claimed_at) for held in self.begun]

    @property
    def unstarted(self) -> int:
        """How many wait for a slot."""
        return len(self.waiting)

    def stop(self) -> None:
        """Remember that it was stopped."""
        self.stopped = True


class PatientPrefetch(Prefetch):
    """A prefetch whose ``max_wait`` only ``StillWorker.stuck`` uses up; the test itself takes too little time."""

    SCALE = 10_000.0

    @property
    def max_wait(self) -> float:
        """Seconds, on the stretched scale of ``StillWorker.stuck``."""
        return super().max_wait * self.SCALE


class StillWorker(Worker):
    """A registered worker whose loop is the test."""

    def __init__(self, *, supervisor: int | None = None, **options: Any) -> None:
        options = {"name": "still", "concurrency": 2} | options
        super().__init__(WorkerOptions(**options), DirectTransport(), supervisor=supervisor)
        self.claimer.prefetch = PatientPrefetch(self.options.look_ahead_ms, self.options.concurrency)
        service.register(
            identify(self.id, self.options.name),
            self.profile,
            concurrency=self.options.concurrency,
            heartbeat_seconds=self.options.heartbeat_seconds,
        )

    # What tests look at, and replace.
    transport = property(attrgetter("_transport"))
    in_flight = property(attrgetter("_in_flight"))
    claimer = property(attrgetter("_claimer"))
    discovery = property(attrgetter("_discovery"))
    heartbeat = property(attrgetter("_heartbeat"))
    shutdown = property(attrgetter("_shutdown"))
    wake_listener = property(attrgetter("_wake_listener"))

    def _make_pool(self) -> StillPool:  # type: ignore[override]
        self.pool = StillPool(self.options.concurrency, Executor(self.id, self._reports))
        return self.pool

    @contextmanager
    def instead(self, **calls: Any) -> Iterator[None]:
        """Let calls to the servers do something else for the block."""
        for name, call in calls.items():
            setattr(self.transport, name, call)
        try:
            yield
        finally:
            for name in calls:
                delattr(self.transport, name)

    def without(self, *calls: str) -> AbstractContextManager[None]:
        """Let these calls fail for the block, as while PostgreSQL does not answer."""
        return self.instead(**dict.fromkeys(calls, away))

    def wake(self) -> None:
        """Let the next turn claim, as after a wake-up call."""
        self._wake(called=False)

    def called(self) -> None:
        """Let the next turn claim, because the index has called this worker."""
        self._wake(called=True)

    def turn(self) -> None:
        """Claim again: a turn of the loop after a wake-up call."""
        self.wake()
        self.run_once()

    def end(self, count: int | None = None) -> None:
        """Run the tasks in the slots to their end, the oldest first, and report them: a turn of the loop."""
        self.pool.finish(count)
        self.run_once()

    @property
    def is_finished(self) -> bool:
        """Whether the loop would end."""
        return self._finished()

    @property
    def pause(self) -> float:
        """Seconds that the loop would sleep."""
        return self._sleep_seconds()

    def beat(self) -> bool:
        """Send a heartbeat."""
        return self._beat()

    def answer(self) -> bool:
        """Send a heartbeat, and another if its answer asks for it; return whether it did."""
        turn = self.heartbeat._turn
        turn.clear()
        self.heartbeat.run_once()
        return turn.is_set() and self.heartbeat.run_once()

    def report_drain(self) -> None:
        """Tell of a drain, as each turn of the loop does."""
        self._report_drain()

    def doubt(self) -> None:
        """Take the last claim for one whose answer was lost."""
        self.claimer._has_unacknowledged = True

    def store_reports(self) -> None:
        """Store what running attempts have reported."""
        self._store_reports()

    def leave(self) -> Exit:
        """Exit, as after the last turn; the threads were never started."""
        self._heartbeat = self._wake_listener = SimpleNamespace(stop=lambda: None)  # type: ignore[assignment]
        return self._exit()

    def later(self, seconds: float) -> None:
        """Let ``seconds`` pass since its last error."""
        self._backoff._not_before -= seconds

    def stuck(self, seconds: float) -> None:
        """Pretend that its slots made no progress for ``seconds``."""
        self.claimer._last_progress -= seconds * PatientPrefetch.SCALE
        for held in self.pool.begun:
            held.claimed_at -= seconds

    def until_finished(self) -> None:
        """Work until the burst is over; each task ends at once."""
        self.run_once()
        while not self.is_finished:
            self.pool.finish()
            self.turn()

    def until_empty(self) -> int:
        """Work until no task is left; return how many were done."""
        while True:
            self.turn()
            if not self.in_flight:
                return self.in_flight.done
            self.pool.finish()


class StillScheduler(Scheduler):
    """A scheduler whose loop is the test."""

    lead, resign, next_at = Scheduler._lead, Scheduler._resign, Scheduler._next_at

    def ask_again(self) -> None:
        """End the pause after an error of the index."""
        self._index_back_at = 0.0

    def renew_next(self) -> None:
        """Let the lead be due for a renewal."""
        self._renew_at = 0.0


def tick(scheduler: StillScheduler, *names: str) -> list[str]:
    """Run these jobs (none: all) now; upkeep too, which a new leader puts off."""
    if not scheduler.leads:
        scheduler.lead()
    for job in scheduler.jobs:
        job.due_at = 0 if not names or job.name in names else float("inf")
    return scheduler.run_once()


def nobody_leads() -> bool:
    """Return whether no scheduler leads."""
    return leader_lapses() is None
