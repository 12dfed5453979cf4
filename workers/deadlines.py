"""End attempts that are past their timeout, whose task was cancelled, or that have lost their task.

A thread or a coroutine that does not end cannot be killed, and limits count functions that run. So its attempt keeps
the task, its slot and its lease until the function ends; after a while the process is replaced.
"""

import logging
import math
import time
import uuid
from collections.abc import Callable, Set as AbstractSet

from queue_app.core.records import AttemptKey, Outcome
from queue_app.exceptions import AttemptLost, TaskCancelled, TaskTimeout
from queue_app.workers.context import ClaimedAttempt
from queue_app.workers.lifecycle import MAX_SLEEP_SECONDS
from queue_app.workers.pools.base import Pool

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
