"""Workers as actors, with their real claimer, tasks in flight, loop and heartbeat. What counts is which functions run.

PostgreSQL can forget the commits that did not wait for the disk, while the functions of its workers run on.

``running``: the first worker runs ``x``. ``twice``: it was cut off from both servers for so long that ``x`` was given
up and granted to it once more, under the same number; both functions run. ``paced``: ``x`` and ``y`` wait under a rate
of one start in 10 s, and one may start.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

from django.db import DatabaseError, connection

from queue_app.core.records import ClaimedTask
from queue_app.exceptions import IndexUnavailable
from queue_app.index import get_index
from queue_app.models import Queue, Worker as WorkerRow
from queue_app.registry import type_of
from queue_app.services.control.queues import copy_queue_limits
from queue_app.services.lifecycle.claim import START_SECONDS, claim
from queue_app.services.repair import rebuild as rebuilds
from queue_app.services.repair.reconcile import Reconciler
from queue_app.workers.context import ClaimedAttempt
from queue_app.workers.executor import Executor
from queue_app.workers.options import WorkerOptions
from queue_app.workers.transport.base import DirectTransport
from queue_app.workers.worker import Worker
from tests.explorer.copies import RESTORE, Copy
from tests.explorer.gates import Actor, Died
from tests.support.crashes import BEGIN_RUN, forget_claims
from tests.support.engine import put, redis_client, row
from tests.support.scene import Hand
from tests.workers import chores
from tests.workers.stage import StillPool, StillWorker

STATES: Final = ("running", "twice", "paced")
#: The rate of the state ``paced``: one start in so many seconds.
PACE: Final = 10
ECHO: Final = type_of(chores.echo)
KEY: Final = "customer:7"  # as the world's
CREW: Final = 2
_present: list[CrewWorker] = []
_await_answers = rebuilds.await_answers
_real_time = time.monotonic
_passed = [0.0]
# It reads all keys, so that its place among all messages matters: every process reads the time.
_PASS: Final = "redis.call('KEYS', ''); redis.call('HINCRBY', KEYS[1], 'behind', ARGV[1])"


def monotonic() -> float:
    """Return the time of all actors, which one of them may let pass."""
    return _real_time() + _passed[0]


def pass_time() -> None:
    """Let as much time pass as a token of the rate lasts, for the index and for all processes."""
    index = get_index()
    redis_client().eval(_PASS, 1, index.keys.generation, PACE * 1_000_000)
    _passed[0] += PACE


class Stage:
    """Which functions run, whatever rows and leases say."""

    def __init__(self) -> None:
        self.running: Counter[str] = Counter()  # by key
        self.ended: Counter[Any] = Counter()  # by task: functions that ran to their end
        self.starts: list[float] = []  # monotonic
        self.most = 0

    def begin(self, task: ClaimedTask) -> None:
        self.starts.append(time.monotonic())
        self.running[task.concurrency_key] += 1
        self.most = max(self.most, *self.running.values())

    def end(self, task: ClaimedTask, *, is_whole: bool) -> None:
        self.running[task.concurrency_key] -= 1
        self.ended[task.id] += is_whole


class CountedPool(StillPool):
    """Slots whose functions the stage counts."""

    stage: Stage

    def _begin(self) -> None:
        before = len(self.begun)
        super()._begin()
        for held in self.begun[before:]:
            if self.executor._is_late(held, now := time.monotonic()):  # as its ``run`` does
                self.begun.remove(held)
                self._outcomes.append(held.outcome(now, is_late=True))
            else:
                self.stage.begin(held.task)

    def finish(self, count: int | None = None) -> None:
        for held in self.begun[:count]:
            self.stage.end(held.task, is_whole=True)
        super().finish(count)

    def interrupt(self, held: ClaimedAttempt, interruption: Any) -> None:
        self.stage.end(held.task, is_whole=False)
        super().interrupt(held, interruption)


class CrewWorker(StillWorker):
    """A worker of the world, which has its row already."""

    def __init__(self, stage: Stage, hand: Hand) -> None:
        self.stage = stage
        Worker.__init__(self, WorkerOptions(name="crew", concurrency=2, look_ahead_ms=0), DirectTransport(), hand.id)
        self._discovery.profile, self._discovery.discover = hand.profile, lambda: False  # type: ignore[method-assign]

    def _make_pool(self) -> CountedPool:  # type: ignore[override]
        executor = Executor(self.id)
        executor.run = lambda held: held.outcome(time.monotonic(), "7")  # type: ignore[method-assign]
        self.pool = CountedPool(self.options.concurrency, executor)
        self.pool.stage = self.stage
        return self.pool

    def hold(self, task: ClaimedTask) -> None:
        """Run a task that was claimed before."""
        held = ClaimedAttempt(task, time.monotonic(), self._transport)
        self._in_flight.add([held])
        self.pool.submit([held])

    def turn(self) -> None:
        """Turn the loop, as after a wake-up call."""
        self.wake()
        self.later(60)
        self.run_once()

    def beat(self) -> None:
        """Send a heartbeat, and another if the answer asks for it."""
        self.answer()

    def die(self) -> None:
        """End all functions with the process."""
        for held in self.pool.begun:
            self.stage.end(held.task, is_whole=False)
        self.pool.begun.clear()
        self._shutdown.lose("it died")

    def memory(self, name_of: Callable[[Any], str]) -> str:
        """Return what it holds, told so that two runs with the same memory look the same."""
        held = sorted(f"{name_of(key[0])} {key[1]} {key in self._in_flight.lost}" for key in self._in_flight.grants)
        return f"{held} {len(self.pool.begun)} {self._in_flight.unreported} {self._shutdown.lost}"


def make(world: Any, state: str) -> None:
    """Enqueue ``x`` and ``y``, of one key unless they are paced, and let the first worker claim ``x``."""
    if state == "paced":
        queue, _ = Queue.objects.get_or_create(pk="default")
        queue.rate_count, queue.rate_seconds, queue.rate_burst = 1, float(PACE), 1
        queue.save()
        copy_queue_limits(queue.name)
        world.x, world.y = (put(ECHO, args=[7]) for _ in range(2))
        pass_time()
        return
    world.x, world.y = (put(ECHO, args=[7], concurrency_key=KEY, user="ina") for _ in range(2))
    first = world.hands[0]
    others = [hand.id for hand in world.hands[CREW:]]
    WorkerRow.objects.filter(id__in=others).update(answered_run=None)  # no process of theirs answers
    world.forgetful = Copy.take(100, ())
    world.held = claim(first.profile, first.id, 1)
    if state == "twice":
        forget_claims()
        with connection.cursor() as cursor:
            cursor.execute("DELETE FROM task_event WHERE after = 'executing'")
        WorkerRow.objects.update(answered_run=None)
        for _ in range(2):
            world.held += claim(first.profile, first.id, 1)
            reconciler = Reconciler(grace=0.0)
            reconciler.run_once()
            reconciler.run_once()


def begin(world: Any) -> None:
    """Let the crew have in its memory what the rows of the state say."""
    world.stage = Stage()
    world.crew = [CrewWorker(world.stage, hand) for hand in world.hands[:CREW]]
    _present[:] = world.crew
    for task in world.held:
        world.crew[0].hold(task)


@contextmanager
def _session() -> Iterator[None]:
    """Close the connection at the end of a block: PostgreSQL may have crashed. Errors of a crash are handled."""
    try:
        with suppress(DatabaseError, IndexUnavailable):
            yield
    finally:
        connection.close()


def _worker(act: Callable[[CrewWorker], Any], number: int) -> Callable[[Any, int], Any]:
    """Return an actor: what a worker of the crew does; its functions end if its process dies."""

    def run(world: Any, _number: int) -> Any:
        worker = world.crew[number]
        if worker.shutdown.lost:
            return
        try:
            with _session():
                act(worker)
        except Died:
            worker.die()
            raise

    return run


def _end(worker: CrewWorker) -> None:
    worker.pool.finish(1)
    worker.turn()


def _recover(worker: CrewWorker) -> None:
    worker.doubt()
    worker.turn()


def _forget(world: Any, _number: int) -> None:
    """PostgreSQL crashes, which ends all sessions, and forgets what was committed since before the claim of ``x``."""
    others = [each for each in threading.enumerate() if isinstance(each, Actor) and not each.is_over]
    sessions = [each.backend_pid for each in others if each is not threading.current_thread()]
    end = f"SELECT pg_terminate_backend(pid, 5000) FROM unnest('{{{','.join(map(str, sessions))}}}'::int[]) AS pid"  # noqa: S608 - numbers
    with connection.cursor() as cursor:
        cursor.execute(f"{end}; {world.forgetful.statement}; {BEGIN_RUN}")
    world.stage.ended.clear()  # ends are forgotten, too


def _mend(_world: Any, _number: int) -> None:
    """Reconcile for as long as it takes to abandon a lease."""
    reconciler = Reconciler(grace=0.0)
    for _ in range(2):
        with _session():
            reconciler.run_once()


def _renew(_world: Any, _number: int) -> None:
    """Redis is emptied, and the index rebuilt."""
    redis_client().flushdb()
    with _session():
        rebuilds.rebuild()


def _lose_second(world: Any, _number: int) -> None:
    """Redis restarts without what it was told since before the claim of ``x``."""
    index = get_index()
    another_run = f"redis.call('HSET', '{index.keys.generation}', 'run_id', 'before')"
    redis_client().eval(RESTORE + another_run, 0, index.keys.everything, *world.forgetful.keys)


def await_answers(end_step: Callable[[], object] = lambda: None) -> None:
    """Let the workers of the present crew send heartbeats while a rebuild waits for them."""

    def pause(_seconds: float) -> None:
        for worker in _present:
            if not worker.shutdown.lost:
                worker.heartbeat.run_once()

    _await_answers(end_step, pause)


def broken(world: Any, _value: Any, _error: BaseException | None) -> Iterator[str]:
    """Yield what must never be of functions that run."""
    if world.state == "twice":  # the two functions of x were there from the beginning
        return
    if world.state == "paced":
        starts = world.stage.starts
        for number, first in enumerate(starts):
            for count, last in enumerate(starts[number:], 1):
                if count > 1 + (last - first + START_SECONDS) / PACE:
                    yield f"{count} functions started within {last - first:.1f} s under a rate of 1 in {PACE} s"
        return
    if world.stage.most > 1:
        yield f"{world.stage.most} functions ran at once under a key that is capped at 1"
    yield from (f"{world.name_of(x)} ran {n} times to its end" for x, n in world.stage.ended.items() if n > 1)


def _end_broken(world: Any, _value: Any, _error: BaseException | None) -> Iterator[str]:
    """The end of the first function of ``x`` ends only its own grant."""
    task = row(world.x)
    if world.state == "twice" and (task.status, task.leased_at) != ("executing", world.held[1].leased_at):
        yield f"the report of a grant that was given up made x {task.status}"


def settle(world: Any) -> Iterator[str]:
    """Let the crew go on as time would: heartbeats, turns of the loops and of the reconciler, ends of functions."""
    reconciler = Reconciler(grace=0.0)
    living = [worker for worker in world.crew if not worker.shutdown.lost]
    dead = [worker.id for worker in world.crew if worker.shutdown.lost]
    WorkerRow.objects.filter(id__in=dead).update(status="dead")
    for _ in range(4):
        for worker in living:
            worker.turn()
        rebuilds.rebuild_if_needed()
        reconciler.run_once()
        for worker in living:
            worker.beat()
            worker.turn()
    for worker in living:
        worker.pool.finish()
        worker.turn()
    yield from broken(world, None, None)
    for worker in living:
        worker.die()


#: What the loop of the first worker does: one after the other.
LOOP: Final = frozenset({"end", "turn", "trouble"})
#: Name -> what it does, in which states, and what it promises.
ACTS: Final[dict[str, tuple[Any, ...]]] = {
    "forget": (_forget, ("running",), broken),
    "beat": (_worker(CrewWorker.beat, 0), ("running",), broken),
    "end": (_worker(_end, 0), STATES, _end_broken),
    "turn": (_worker(CrewWorker.turn, 0), ("running", "paced"), broken),
    "trouble": (_worker(_recover, 0), ("running",), broken),
    "crew": (_worker(CrewWorker.turn, 1), ("running", "paced"), broken),
    "pass_time": (lambda _world, _number: pass_time(), ("paced",)),
    "mend": (_mend, STATES, broken),
    "renew": (_renew, ("running",), broken, True),
    "lose_second": (_lose_second, ("running",), broken, True),
}
