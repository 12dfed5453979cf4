"""End attempts that are past their timeout, or whose task was cancelled."""

import logging
import math
import time
import uuid
from collections.abc import Set as AbstractSet

from queue_app.core.records import Outcome
from queue_app.exceptions import TaskCancelled, TaskTimeout
from queue_app.workers.context import ClaimedAttempt
from queue_app.workers.pools.base import Pool

logger = logging.getLogger("taskqueue")

#: Time after its timeout at which a worker abandons an attempt that has not ended: it blocks outside of Python.
STUCK_SECONDS = 5.0
#: Minimum time between two checks.
MIN_CHECK_SECONDS = 0.05


def enforce(pool: Pool, cancelled: AbstractSet[uuid.UUID]) -> list[Outcome]:
    """Interrupt the attempts that must end; return the outcomes of the attempts that were ended by force."""
    outcomes: list[Outcome] = []
    for held, seconds in pool.running():
        if held.interruption is not None:
            if _seconds_to_repeat(pool, held) <= 0:
                pool.interrupt_again(held)
        elif held.task.id in cancelled:
            pool.interrupt(held, TaskCancelled)
        elif seconds > held.timeout:
            pool.interrupt(held, TaskTimeout)
        if _seconds_left(pool, held, seconds) <= 0:
            outcome = pool.abandon(held, TaskCancelled() if held.interruption is TaskCancelled else TaskTimeout())
            if outcome is not None:
                logger.error("%s does not end; the worker abandons the attempt", held.task.task_type)
                outcomes.append(outcome)
    return outcomes


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
    """Return how long an attempt may still run before the pool ends it by force."""
    left = held.timeout + STUCK_SECONDS - seconds
    if pool.kill_after is None or held.interruption is None:
        return left
    return min(left, held.interrupted_at + pool.kill_after - time.monotonic())


def _seconds_to_repeat(pool: Pool, held: ClaimedAttempt) -> float:
    """Return how long to wait for an interrupted attempt to end before the pool interrupts it again."""
    return math.inf if pool.repeat_after is None else held.asked_at + pool.repeat_after - time.monotonic()
