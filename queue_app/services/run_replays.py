"""Advance replays of many, in bounded steps.

Each step is one transaction on the locked row of its operation: the tasks, their records
and the progress change together. Whoever finds the row locked leaves it to the other.

Crash points: in the middle of a step nothing of it has happened, and the next one does it.
Between two steps the row says how far it has come. Between the commit of a step and its
push the tasks are queued but not indexed, and the reconciler pushes them.
"""

from __future__ import annotations

import math
import uuid
from datetime import datetime, timedelta

from django.db.models import Q

from queue_app import signals
from queue_app.models import ReplayOperation
from queue_app.models.replay_operation import ReplayState
from queue_app.rows import dead_letters as rows
from queue_app.rows.database import atomic
from queue_app.services.dead_letters import DeadLetterFilter, matching
from queue_app.services.replay import replay_open

#: Dead letters of one transaction.
STEP = 500
STEPS = 10
#: An operation whose pace was not used for a while, as no scheduler ran, makes up for at most so much of it at once.
CATCH_UP_SECONDS = 2.0
#: Operations that are looked at in one round.
ROUND = 100
_PROGRESS = [
    "state", "replayed", "failed_again", "skipped", "finished_at", "cleared_at", "paced_at", "after_died_at", "after_id"
]  # fmt: skip


def run_replays(*, steps: int = STEPS) -> int:
    """Advance every running operation by at most ``steps`` steps; return how many dead letters were handled.

    To be called about once a second. Safe to run twice at once, and costs one query when
    nothing is to be replayed.
    """
    handled = 0
    for _ in range(steps):
        running = ReplayOperation.objects.filter(state=ReplayState.RUNNING).order_by("id")
        moved = sum(advance(operation_id) for operation_id in running.values_list("id", flat=True)[:ROUND])
        handled += moved
        if not moved:
            break
    return handled


def advance(operation_id: uuid.UUID) -> int:
    """Take one step of an operation; return how many dead letters it handled, 0 when it has to wait."""
    with atomic():
        running = ReplayOperation.objects.select_for_update(skip_locked=True).filter(state=ReplayState.RUNNING)
        operation = running.filter(pk=operation_id).first()
        if operation is None:
            return 0
        clock = rows.clock()
        handled = 0
        if not _first_ones_failed(operation, clock):
            handled = _replay_next(operation, _allowance(operation, clock))
        if operation.state != ReplayState.RUNNING:
            operation.finished_at = clock
            operation.failed_again, _ended_otherwise = rows.outcomes(operation.id)
        operation.save(update_fields=_PROGRESS)
    if operation.state != ReplayState.RUNNING:
        signals.replay_ended.send(None, operation=operation)
    return handled


def _first_ones_failed(operation: ReplayOperation, clock: datetime) -> bool:
    """Look what became of the first ones, until it is known; stop the operation when all of them failed again."""
    if not operation.stop_after_failures or operation.cleared_at is not None or not operation.replayed:
        return False
    failed, ended_otherwise = rows.outcomes(operation.id, operation.stop_after_failures)
    operation.failed_again = failed
    if ended_otherwise:
        operation.cleared_at = clock
    elif failed >= operation.stop_after_failures:
        operation.state = ReplayState.STOPPED
        return True
    return False


def _allowance(operation: ReplayOperation, clock: datetime) -> int:
    """Return how many dead letters may be replayed now."""
    allowed = STEP
    if operation.stop_after_failures and operation.cleared_at is None:
        allowed = min(allowed, operation.stop_after_failures - operation.replayed)
    if operation.pace is not None:
        window = max(CATCH_UP_SECONDS, 1 / operation.pace)
        operation.paced_at = max(operation.paced_at, clock - timedelta(seconds=window))
        seconds = (clock - operation.paced_at).total_seconds()
        allowed = min(allowed, math.floor(seconds * operation.pace + 1e-6))  # times have microseconds
    return max(allowed, 0)


def _replay_next(operation: ReplayOperation, allowed: int) -> int:
    """Replay the next ``allowed`` dead letters; end the operation when there are no more."""
    wanted = min(allowed, operation.remaining)
    letters = _next_letters(operation, wanted)
    if letters:
        moved = replay_open([letter_id for letter_id, _ in letters], by=operation.by, operation_id=operation.id)
        operation.replayed += len(moved)
        operation.skipped += len(letters) - len(moved)
        operation.after_id, operation.after_died_at = letters[-1]
        if operation.pace is not None:
            operation.paced_at += timedelta(seconds=len(moved) / operation.pace)
    if not operation.remaining or len(letters) < wanted:
        operation.skipped = max(0, operation.total - operation.replayed)
        operation.state = ReplayState.DONE
    return len(letters)


def _next_letters(operation: ReplayOperation, count: int) -> list[tuple[uuid.UUID, datetime]]:
    """Return (id, time of death) of the next open dead letters that died before the operation was asked for."""
    if not count:
        return []
    letters = matching(DeadLetterFilter.from_json(operation.filter)).open().filter(died_at__lte=operation.created_at)
    after = operation.after_died_at
    if after is not None:
        later = Q(died_at__gt=after) | Q(died_at=after, id__gt=operation.after_id)
        letters = letters.filter(later, died_at__gte=after)
    return list(letters.order_by("died_at", "id").values_list("id", "died_at")[:count])
