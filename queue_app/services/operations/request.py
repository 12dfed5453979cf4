"""Ask for an action on many tasks or dead letters; watch it, and cancel it.

An operation is a row, so it goes on when whoever asked for it is gone, survives every
process, and can be watched and cancelled by anybody who may. ``advance`` carries it out,
in steps. Nothing here touches the index.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from queue_app import signals
from queue_app.core.priorities import Band
from queue_app.core.states import PENDING_NAME, Status
from queue_app.exceptions import InvalidTaskData, OperationEnded, OperationNotFound
from queue_app.models import Operation
from queue_app.models.audit_entry import REASON_LENGTH
from queue_app.models.columns import USER_LENGTH
from queue_app.models.operation import OperationKind, OperationState, OperationTarget
from queue_app.models.querysets import TaskQuerySet
from queue_app.services.enqueue.validate import check_reason
from queue_app.services.lifecycle.actions import RETRIABLE
from queue_app.services.read import dead_letters
from queue_app.services.read.dead_letters import DeadLetterFilter, Preview
from queue_app.services.read.task_filter import TaskFilter, matching
from queue_app.sql import dead_letters as rows
from queue_app.sql.database import atomic, clock

MAX_IDS: Final = 10_000
SAMPLE: Final = 10
MAX_STOP_AFTER_FAILURES: Final = 1000
#: Tasks per second: from one in about a quarter of an hour.
MIN_RATE: Final = 0.001
MAX_RATE: Final = 10_000
MAX_LIMIT: Final = 2**31 - 1
#: What the status of a task must be.
_STATES: Final = {
    OperationKind.REPLAY: (Status.DEAD_LETTER,),
    OperationKind.RETRY: tuple(sorted(RETRIABLE)),
    OperationKind.RUN_NOW: (Status.SCHEDULED,),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """What shall be done; ``band`` is where ``reprioritise`` moves the tasks to."""

    kind: OperationKind
    band: Band | None = None

    def __post_init__(self) -> None:
        if (self.band is None) == (self.kind is OperationKind.REPRIORITISE):
            raise InvalidTaskData("priority", "priority goes with reprioritise, and only with it.", code="required")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """To how many it is done, and how fast."""

    rate: float | None = None  # per second; None: as fast as it goes
    limit: int | None = None  # at most so many; None: all
    stop_after_failures: int = 0  # of a replay: the first so many go ahead alone, see start_operation; 0: never stop


def preview_operation(action: Action, wanted: TaskFilter | DeadLetterFilter, limit: int | None = None) -> Preview:
    """Return to how many of a filter, at most ``limit``, an action applies now, and the first of them."""
    if isinstance(wanted, DeadLetterFilter):
        return dead_letters.preview(wanted, limit)
    tasks = applicable(action, wanted)
    count = (tasks if limit is None else tasks[:limit]).count()
    return Preview(count, list(tasks.order_by("id").values_list("id", flat=True)[: min(count, SAMPLE)]))


def start_operation(
    action: Action,
    wanted: TaskFilter | DeadLetterFilter,
    options: Options | None = None,
    *,
    by: str,
    reason: str = "",
) -> Operation:
    """Begin to do something to all that a filter means now, oldest first; return the operation.

    What is stored, or dies, after this call is left alone. With ``stop_after_failures`` the
    first ones that are replayed go ahead alone: the others follow once one of them has ended
    without failing, and when all of them fail again the operation stops. Who may do what to
    whose tasks is for the caller to check, and to put into the filter. Raises
    ``InvalidTaskData``.
    """
    options = options or Options()
    check_reason(reason, REASON_LENGTH)
    check_options(options)
    if options.stop_after_failures and action.kind is not OperationKind.REPLAY:
        raise InvalidTaskData("stop_after_failures", "stop_after_failures goes with replay only.")
    of_letters = isinstance(wanted, DeadLetterFilter)
    if of_letters and action.kind is not OperationKind.REPLAY:
        raise InvalidTaskData("action", "Dead letters can be replayed only.")
    if wanted.ids is not None and len(wanted.ids) > MAX_IDS:
        raise InvalidTaskData("ids", f"One operation takes at most {MAX_IDS} ids; use a filter.", limit=MAX_IDS)
    now, rate = clock(), options.rate
    return Operation.objects.create(
        kind=action.kind,
        target=OperationTarget.DEAD_LETTERS if of_letters else OperationTarget.TASKS,
        filter=wanted.as_json(),
        arguments={} if action.band is None else {"priority": action.band.label},
        rate=rate,
        limit=options.limit,
        stop_after_failures=options.stop_after_failures,
        by=by[:USER_LENGTH],
        reason=reason,
        total=preview_operation(action, wanted, options.limit).count,
        created_at=now,
        paced_at=None if rate is None else now - timedelta(seconds=1 / rate),  # the first one may go at once
    )


def get_operation(operation_id: uuid.UUID) -> Operation:
    """Return an operation, with how many of its tasks have failed again by now. Raises ``OperationNotFound``."""
    operation = Operation.objects.filter(pk=operation_id).first()
    if operation is None:
        raise _not_found(operation_id)
    if operation.kind == OperationKind.REPLAY:
        operation.failed_again, _ended_otherwise = rows.outcomes(operation.id)
    return operation


def cancel_operation(operation_id: uuid.UUID, *, by: str) -> Operation:
    """End an operation before its time; what it has changed stays changed.

    Waits for a step under way, which is short. Raises ``OperationNotFound``, and
    ``OperationEnded`` when it has ended.
    """
    with atomic():
        operation = Operation.objects.select_for_update().filter(pk=operation_id).first()
        if operation is None:
            raise _not_found(operation_id)
        if operation.state != OperationState.RUNNING:
            raise OperationEnded(f"The operation is {operation.state} already.")
        operation.state, operation.ended_by = OperationState.CANCELLED, by[:USER_LENGTH]
        operation.finished_at = clock()
        operation.save(update_fields=["state", "finished_at", "ended_by"])
    signals.operation_ended.send(None, operation=operation)
    return operation


def applicable(action: Action, wanted: TaskFilter) -> TaskQuerySet:
    """Return the tasks of a filter to which an action applies as they are now."""
    tasks = matching(wanted)
    if action.kind is OperationKind.CANCEL:
        return tasks.in_status(PENDING_NAME)
    if action.kind is OperationKind.REPRIORITISE:
        return tasks.in_status(Status.SCHEDULED, Status.QUEUED).exclude(priority=action.band)
    return tasks.in_status(*_STATES[action.kind])


def check_options(options: Options) -> None:
    """Raise ``InvalidTaskData`` for numbers out of their range."""
    rate, limit, stop = options.rate, options.limit, options.stop_after_failures
    if rate is not None and not (type(rate) in (int, float) and MIN_RATE <= rate <= MAX_RATE):  # false for NaN too
        raise InvalidTaskData(
            "rate",
            f"rate must be a number of tasks per second, {MIN_RATE:g} to {MAX_RATE}.",
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


def _not_found(operation_id: uuid.UUID) -> OperationNotFound:
    return OperationNotFound(f"There is no operation {operation_id}.")


STOP_AFTER_FAILURES: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayOptions(Options):
    """How many are replayed, and how fast; when all of the first ones fail again, the others stay dead."""

    stop_after_failures: int = STOP_AFTER_FAILURES


def start_replay(
    wanted: DeadLetterFilter, options: ReplayOptions | None = None, *, by: str, reason: str = ""
) -> Operation:
    """Begin to replay the open dead letters that a filter means now, oldest first; see ``start_operation``.

    See ``dead_letters.preview`` for a dry run. Raises ``InvalidTaskData``.
    """
    replay = Action(kind=OperationKind.REPLAY)
    return start_operation(replay, wanted, options or ReplayOptions(), by=by, reason=reason)
