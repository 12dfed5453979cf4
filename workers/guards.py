"""Guards: end attempts past their timeout or without their task; watch slots that make no progress.

A thread or a coroutine that does not end cannot be killed, and limits count functions that run. So its attempt keeps
the task, its slot and its lease until the function ends; after a while the process is replaced.
"""

import logging
import math
import os
import time
import uuid
from collections.abc import Callable, Set as AbstractSet
from typing import Final

from queue_app.core.records import AttemptKey, Outcome
from queue_app.exceptions import AttemptLost, TaskCancelled, TaskTimeout
from queue_app.workers.auto_slots import Seen, SlotRange, SlotState, step
from queue_app.workers.context import ClaimedAttempt
from queue_app.workers.lifecycle import MAX_SLEEP_SECONDS, essential_thread
from queue_app.workers.pools.base import Pool
from queue_app.workers.resources import CpuClock, cores, memory, resident_bytes

logger = logging.getLogger("taskqueue")

#: Time after its timeout at which an attempt that has not ended counts as stuck: it blocks outside of Python.
STUCK_SECONDS = 5.0
#: Time that a stuck attempt has to end before the worker's process is replaced.
REPLACE_SECONDS = 60.0
#: Minimum time between two checks.
MIN_CHECK_SECONDS = 0.05


def enforce(
    pool: Pool,
    cancelled: AbstractSet[uuid.UUID],
    on_stuck: Callable[[ClaimedAttempt], object] = lambda _held: None,
    lost: AbstractSet[AttemptKey] = frozenset(),
) -> list[Outcome]:
    """Interrupt the attempts that must end; return the outcomes of the attempts that were ended by force.

    Calls ``on_stuck`` once for each attempt that the pool cannot end.
    """
    outcomes: list[Outcome] = []
    for held, seconds in pool.running():
        if held.interruption is not None:
            if _seconds_to_repeat(pool, held) <= 0:
                pool.interrupt_again(held)
        elif held.key in lost:
            pool.interrupt(held, AttemptLost)
        elif held.task.id in cancelled:
            pool.interrupt(held, TaskCancelled)
        elif seconds > held.timeout:
            pool.interrupt(held, TaskTimeout)
        if held.stuck_at or _seconds_left(pool, held, seconds) > 0:
            continue
        if pool.can_kill:
            outcomes += end_by_force(pool, held)
        else:
            held.stuck_at = time.monotonic()
            pool.give_up(held)
            on_stuck(held)
    return outcomes


def end_by_force(pool: Pool, held: ClaimedAttempt) -> list[Outcome]:
    """Kill the attempt, or forget it because the process ends; return its outcome, unless it has just ended."""
    outcome = pool.abandon(held, TaskCancelled() if held.interruption is TaskCancelled else TaskTimeout())
    if outcome is None:
        return []
    logger.error("%s does not end; its process does", held.task.task_type)
    return [outcome]


def must_be_replaced(pool: Pool) -> bool:
    """Whether an attempt has been stuck for too long, so that only the end of the process ends it."""
    since = [held.stuck_at for held, _ in pool.running() if held.stuck_at]
    return bool(since) and time.monotonic() - min(since) >= REPLACE_SECONDS


def next_due(pool: Pool) -> float | None:
    """Return the seconds until ``enforce`` may have something to do; ``None`` if nothing runs."""
    times = [
        held.timeout - seconds
        if seconds <= held.timeout and held.interruption is None
        else min(_seconds_left(pool, held, seconds), _seconds_to_repeat(pool, held))
        for held, seconds in pool.running()
    ]
    return max(MIN_CHECK_SECONDS, min(times)) if times else None


def _seconds_left(pool: Pool, held: ClaimedAttempt, seconds: float) -> float:
    """Return how long an attempt may still run before the pool ends it by force, or the process is replaced."""
    if held.stuck_at:
        return max(MAX_SLEEP_SECONDS, held.stuck_at + REPLACE_SECONDS - time.monotonic())
    left = held.timeout + STUCK_SECONDS - seconds
    if pool.kill_after is None or held.interruption is None:
        return left
    return min(left, held.interrupted_at + pool.kill_after - time.monotonic())


def _seconds_to_repeat(pool: Pool, held: ClaimedAttempt) -> float:
    """Return how long to wait for an interrupted attempt to end before the pool interrupts it again."""
    return math.inf if pool.repeat_after is None else held.asked_at + pool.repeat_after - time.monotonic()


# Measure a worker that adapts its number of slots: 25 samples and one decision (``auto_slots.step``) a second.

SAMPLE_SECONDS: Final = 0.04
STEP_SECONDS: Final = 1.0


class AutoSlots:
    """Measures the worker, and calls ``on_change`` when ``slots`` has changed."""

    def __init__(  # noqa: PLR0913, PLR0917 - what it measures
        self,
        bounds: SlotRange,
        first: int,
        pool: Pool,
        measure: Callable[[], tuple[int, bool]],
        done: Callable[[], int],
        on_change: Callable[[], object],
    ) -> None:
        self.state = SlotState(bounds.clamp(first))
        self._bounds, self._pool, self._measure, self._on_change = bounds, pool, measure, on_change
        self._done, self._known_done = done, 0
        self._cpus, self._cpu = cores(), CpuClock(lambda: pool.pids)
        self._samples: list[tuple[int, bool, float]] = []
        self._began, self._own_memory = time.monotonic(), 0
        self._stopping = False
        self._thread = essential_thread(self._run, "auto-slots")

    @property
    def slots(self) -> int:
        """The number of slots to have now."""
        return self.state.slots

    def start(self) -> None:
        self._own_memory = _resident(self._pool)
        self._thread.start()

    def stop(self) -> None:
        """Let the thread end after its present sample."""
        self._stopping = True

    def _run(self) -> None:
        while not self._stopping:
            self.sample()
            if time.monotonic() - self._began >= STEP_SECONDS:
                self.decide()

    def sample(self) -> None:
        """Take one sample: how late this thread wakes, and what the worker does."""
        late = self._pool.lateness(SAMPLE_SECONDS)
        self._samples.append((*self._measure(), late))

    def decide(self) -> None:
        """Decide from the samples since the last decision."""
        now = time.monotonic()
        seconds, self._began = now - self._began, now
        samples, self._samples = self._samples, []
        used = sum(sample[0] for sample in samples) / len(samples)
        in_use, total = memory()
        done = self._done()
        ended, self._known_done = done - self._known_done, done
        seen = Seen(
            used=used,
            short=sum(sample[1] for sample in samples) / len(samples),
            wanted=self._cpu.since() / seconds,
            late=sum(sample[2] for sample in samples) / len(samples),
            ended=ended,
            memory=in_use / total,
            slot_memory=max(0, _resident(self._pool) - self._own_memory) / max(1.0, used) / total,
        )
        before, self.state = self.state, step(self.state, self._bounds, seen, self._cpus, now)
        if self.state.slots != before.slots:
            self._on_change()


def _resident(pool: Pool) -> int:
    return sum(resident_bytes(pid) or 0 for pid in (os.getpid(), *pool.pids))
