"""End attempts that are past their timeout, or that were cancelled."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Set as AbstractSet

from queue_app.core.records import Outcome
from queue_app.exceptions import TaskCancelled, TaskTimeout
from workers.pools.threads import ThreadPool

logger = logging.getLogger("taskqueue")

#: An attempt that does not end so many seconds after its timeout blocks outside of Python.
STUCK_SECONDS = 5.0
#: The loop looks no more often than this.
LEAST_SECONDS = 0.05


def enforce(pool: ThreadPool, cancelled: AbstractSet[uuid.UUID]) -> list[Outcome]:
    """Interrupt what must end now; return the outcomes of attempts whose threads had to be given up."""
    outcomes: list[Outcome] = []
    for held, seconds in pool.running():
        timeout = held.task.timeout
        if held.task.id in cancelled:
            pool.interrupt(held, TaskCancelled)
        elif seconds > timeout:
            pool.interrupt(held, TaskTimeout)
        if seconds > timeout + STUCK_SECONDS:
            outcome = pool.abandon(held, TaskTimeout())
            if outcome is not None:
                logger.error("%s does not end; its thread is given up", held.task.task_type)
                outcomes.append(outcome)
    return outcomes


def next_due(pool: ThreadPool) -> float | None:
    """Return the seconds until ``enforce`` may have something to do; ``None`` while nothing runs."""
    times = [
        held.task.timeout - seconds if seconds <= held.task.timeout else held.task.timeout + STUCK_SECONDS - seconds
        for held, seconds in pool.running()
    ]
    return max(LEAST_SECONDS, min(times)) if times else None
