"""Ask for a replay of many dead letters: it is a row, which ``run_replays`` advances.

So it goes on when whoever asked for it is gone, survives every process, and can be
watched and cancelled by anybody who may. Nothing here touches the index.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import timedelta

from queue_app import signals
from queue_app.exceptions import InvalidTaskData, OperationEnded, OperationNotFound
from queue_app.models import ReplayOperation
from queue_app.models.replay_operation import REASON_LENGTH, ReplayState
from queue_app.models.task import USER_LENGTH
from queue_app.rows import dead_letters as rows
from queue_app.rows.database import atomic
from queue_app.services.dead_letters import DeadLetterFilter, preview
from queue_app.services.validate import check_reason

STOP_AFTER_FAILURES = 5
MAX_STOP_AFTER_FAILURES = 1000
MAX_IDS = 10_000
#: Dead letters per second: from one in about a quarter of an hour.
MIN_RATE, MAX_RATE = 0.001, 10_000
MAX_LIMIT = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayOptions:
    """How many are replayed, and how fast."""

    rate: float | None = None  # dead letters per second; None: as fast as it goes
    limit: int | None = None  # at most so many; None: all
    stop_after_failures: int = STOP_AFTER_FAILURES  # see start_replay; 0: never stop


def start_replay(
    wanted: DeadLetterFilter, options: ReplayOptions | None = None, *, by: str, reason: str = ""
) -> ReplayOperation:
    """Begin to replay the open dead letters that a filter means now, oldest first; return the operation.

    The first ``stop_after_failures`` go ahead alone: the others follow once one of them has
    ended without failing, and when all of them fail again the operation stops. What dies
    after this call is left alone. See ``dead_letters.preview`` for a dry run. Raises
    ``InvalidTaskData``.
    """
    options = options or ReplayOptions()
    check_reason(reason, REASON_LENGTH)
    check_options(options)
    if wanted.ids is not None and len(wanted.ids) > MAX_IDS:
        raise InvalidTaskData("ids", f"One operation takes at most {MAX_IDS} ids; use a filter.", limit=MAX_IDS)
    clock = rows.clock()
    return ReplayOperation.objects.create(
        filter=wanted.as_json(),
        pace=options.rate,
        stop_after_failures=options.stop_after_failures,
        by=by[:USER_LENGTH],
        reason=reason,
        total=preview(wanted, options.limit).count,
        created_at=clock,
        paced_at=clock - timedelta(seconds=1 / options.rate) if options.rate else clock,  # the first one may go at once
    )


def get_operation(operation_id: uuid.UUID) -> ReplayOperation:
    """Return an operation, with the number of its tasks that have failed again by now. Raises ``OperationNotFound``."""
    operation = ReplayOperation.objects.filter(pk=operation_id).first()
    if operation is None:
        raise OperationNotFound(f"There is no operation {operation_id}.")
    operation.failed_again, _ended_otherwise = rows.outcomes(operation.id)
    return operation


def cancel_replay(operation_id: uuid.UUID, *, by: str) -> ReplayOperation:
    """End an operation before its time; what it has replayed stays replayed.

    Waits for a step under way, which is short. Raises ``OperationNotFound``, and
    ``OperationEnded`` when it has ended.
    """
    with atomic():
        operation = ReplayOperation.objects.select_for_update().filter(pk=operation_id).first()
        if operation is None:
            raise OperationNotFound(f"There is no operation {operation_id}.")
        if operation.state != ReplayState.RUNNING:
            raise OperationEnded(f"The replay is {operation.state} already.")
        operation.state, operation.finished_at, operation.ended_by = (
            ReplayState.CANCELLED,
            rows.clock(),
            by[:USER_LENGTH],
        )
        operation.save(update_fields=["state", "finished_at", "ended_by"])
    signals.replay_ended.send(None, operation=operation)
    return operation


def check_options(options: ReplayOptions) -> None:
    """Raise ``InvalidTaskData`` for numbers out of their range."""
    rate, limit, stop = options.rate, options.limit, options.stop_after_failures
    if rate is not None and not (type(rate) in (int, float) and MIN_RATE <= rate <= MAX_RATE):  # false for NaN too
        raise InvalidTaskData(
            "rate",
            f"rate must be a number of dead letters per second, {MIN_RATE:g} to {MAX_RATE}.",
            code="out_of_range",
            limit=MAX_RATE,
        )
    for name, value, low, high in (
        ("limit", limit, 1, MAX_LIMIT),
        ("stop_after_failures", stop, 0, MAX_STOP_AFTER_FAILURES),
    ):
        if value is not None and not (type(value) is int and low <= value <= high):
            raise InvalidTaskData(
                name, f"{name} must be a whole number from {low} to {high}.", code="out_of_range", limit=high
            )
