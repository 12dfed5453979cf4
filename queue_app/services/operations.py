"""Cancel, reprioritise, replay, retry or run many tasks now, in the background, in bounded steps.

An operation is a row, so it goes on when whoever asked for it is gone, survives every
process, and can be watched and cancelled. The scheduler advances it (``run_operations``);
``advance`` may be called by anybody who does not want to wait for that.

Each step is one transaction on the locked row of the operation: the tasks and the progress
change together. Whoever finds the row locked leaves it to the other.

Crash points: in the middle of a step nothing of it has happened, and the next one does it.
Between two steps the row says how far it has come. Between the commit of a step and what
the index is told, the reconciler repairs the index, as for a single task.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from queue_app import signals
from queue_app.core.priorities import Band, parse_band
from queue_app.core.states import PENDING_NAME, Status
from queue_app.exceptions import InvalidTaskData, OperationEnded, OperationNotFound
from queue_app.models import DeadLetter, Operation
from queue_app.models.operation import OperationKind, OperationState
from queue_app.models.querysets import TaskQuerySet
from queue_app.models.replay_operation import REASON_LENGTH
from queue_app.models.task import USER_LENGTH
from queue_app.rows.database import atomic
from queue_app.rows.dead_letters import clock
from queue_app.services.cancel import cancel_many
from queue_app.services.replay import replay_open
from queue_app.services.reprioritise import reprioritise_many
from queue_app.services.retry import RETRIABLE, retry_many, run_now_many
from queue_app.services.task_filter import TaskFilter, matching
from queue_app.services.validate import check_reason

#: Tasks of one transaction.
STEP: Final = 500
STEPS: Final = 10
#: Operations that are looked at in one round.
ROUND: Final = 100
MAX_IDS: Final = 10_000
SAMPLE: Final = 10
#: What the status of a task must be.
_STATES: Final = {
    OperationKind.REPLAY: (Status.DEAD_LETTER,),
    OperationKind.RETRY: tuple(sorted(RETRIABLE)),
    OperationKind.RUN_NOW: (Status.SCHEDULED,),
}
_PROGRESS: Final = ["state", "changed", "skipped", "finished_at", "after_id"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """What shall be done; ``band`` is where ``reprioritise`` moves the tasks to."""

    kind: OperationKind
    band: Band | None = None

    def __post_init__(self) -> None:
        if (self.band is None) == (self.kind is OperationKind.REPRIORITISE):
            raise InvalidTaskData("priority", "priority goes with reprioritise, and only with it.", code="required")


@dataclass(frozen=True, slots=True)
class Preview:
    """What an action would be done to now: how many tasks, and the first of them."""

    count: int
    sample: list[uuid.UUID]


def preview_operation(action: Action, wanted: TaskFilter) -> Preview:
    """Return how many tasks of a filter an action applies to now; changes nothing."""
    tasks = applicable(action, wanted)
    return Preview(tasks.count(), list(tasks.order_by("id").values_list("id", flat=True)[:SAMPLE]))


def start_operation(action: Action, wanted: TaskFilter, *, by: str, reason: str = "") -> Operation:
    """Begin to do something to all tasks that a filter means now, oldest first; return the operation.

    Tasks that are stored after this call are left alone. Who may do what to whose tasks is
    for the caller to check, and to put into the filter. Raises ``InvalidTaskData``.
    """
    check_reason(reason, REASON_LENGTH)
    if wanted.ids is not None and len(wanted.ids) > MAX_IDS:
        raise InvalidTaskData("ids", f"One operation takes at most {MAX_IDS} ids; use a filter.", limit=MAX_IDS)
    return Operation.objects.create(
        kind=action.kind,
        filter=wanted.as_json(),
        arguments={} if action.band is None else {"priority": action.band.label},
        by=by[:USER_LENGTH],
        reason=reason,
        total=applicable(action, wanted).count(),
        created_at=clock(),
    )


def get_operation(operation_id: uuid.UUID) -> Operation:
    """Return an operation; raise ``OperationNotFound``."""
    operation = Operation.objects.filter(pk=operation_id).first()
    if operation is None:
        raise OperationNotFound(f"There is no operation {operation_id}.")
    return operation


def cancel_operation(operation_id: uuid.UUID, *, by: str) -> Operation:
    """End an operation before its time; what it has changed stays changed.

    Waits for a step under way, which is short. Raises ``OperationNotFound``, and
    ``OperationEnded`` when it has ended.
    """
    with atomic():
        operation = Operation.objects.select_for_update().filter(pk=operation_id).first()
        if operation is None:
            raise OperationNotFound(f"There is no operation {operation_id}.")
        if operation.state != OperationState.RUNNING:
            raise OperationEnded(f"The operation is {operation.state} already.")
        operation.state, operation.finished_at, operation.ended_by = OperationState.CANCELLED, clock(), by[:USER_LENGTH]
        operation.save(update_fields=["state", "finished_at", "ended_by"])
    signals.operation_ended.send(None, operation=operation)
    return operation


def run_operations(*, steps: int = STEPS) -> int:
    """Advance every running operation by at most ``steps`` steps; return how many tasks were looked at.

    To be called about once a second. Safe to run twice at once, and costs one query when
    nothing is to be done. The error of one operation is raised once the others had their turn.
    """
    handled = 0
    failure: Exception | None = None
    for _ in range(steps):
        running = Operation.objects.filter(state=OperationState.RUNNING).order_by("id")
        moved = 0
        for operation_id in running.values_list("id", flat=True)[:ROUND]:
            try:
                moved += advance(operation_id)
            except Exception as error:  # noqa: BLE001 - raised below; it is one operation's, not its neighbours'
                failure = failure or error
        handled += moved
        if not moved:
            break
    if failure is not None:
        raise failure
    return handled


def advance_for(operation_id: uuid.UUID, seconds: float) -> Operation:
    """Advance one operation for so long, so that a small one ends at once; return it as it is then."""
    until = time.monotonic() + seconds
    while advance(operation_id) and time.monotonic() < until:
        pass
    return get_operation(operation_id)


def advance(operation_id: uuid.UUID) -> int:
    """Take one step of an operation; return how many tasks it looked at, 0 when it has ended or another is at it."""
    with atomic():
        running = Operation.objects.select_for_update(skip_locked=True).filter(state=OperationState.RUNNING)
        operation = running.filter(pk=operation_id).first()
        if operation is None:
            return 0
        action = _action_of(operation)
        ids = _next_ids(operation, action)
        if ids:
            operation.changed += _apply(operation, action, ids)
            operation.after_id = ids[-1]
        if len(ids) < STEP:
            operation.state, operation.finished_at = OperationState.DONE, clock()
            # Also those that no page showed: they were claimed, ended or purged before it was their turn.
            operation.skipped = max(0, operation.total - operation.changed)
        operation.save(update_fields=_PROGRESS)
    if operation.state != OperationState.RUNNING:
        signals.operation_ended.send(None, operation=operation)
    return len(ids)


def applicable(action: Action, wanted: TaskFilter) -> TaskQuerySet:
    """Return the tasks of a filter to which an action applies as they are now."""
    tasks = matching(wanted)
    if action.kind is OperationKind.CANCEL:
        return tasks.in_status(PENDING_NAME)
    if action.kind is OperationKind.REPRIORITISE:
        return tasks.in_status(Status.SCHEDULED, Status.QUEUED).exclude(priority=action.band)
    return tasks.in_status(*_STATES[action.kind])


def _action_of(operation: Operation) -> Action:
    name = operation.arguments.get("priority")
    return Action(kind=OperationKind(operation.kind), band=None if name is None else parse_band(name))


def _next_ids(operation: Operation, action: Action) -> list[uuid.UUID]:
    tasks = applicable(action, TaskFilter.from_json(operation.filter)).filter(created_at__lte=operation.created_at)
    if operation.after_id is not None:
        tasks = tasks.filter(id__gt=operation.after_id)
    return list(tasks.order_by("id").values_list("id", flat=True)[:STEP])


def _apply(operation: Operation, action: Action, ids: list[uuid.UUID]) -> int:
    """Do it to those of the tasks that still allow it; return how many."""
    return _APPLY[action.kind](operation, action, ids)


def _cancel(_operation: Operation, _action: Action, ids: Sequence[uuid.UUID]) -> int:
    return len(cancel_many(ids))


def _reprioritise(_operation: Operation, action: Action, ids: Sequence[uuid.UUID]) -> int:
    return len(reprioritise_many(ids, Band(action.band or 0)))


def _replay(operation: Operation, _action: Action, ids: Sequence[uuid.UUID]) -> int:
    letters = DeadLetter.objects.open().filter(task_id__in=ids).order_by("id").values_list("id", flat=True)
    return len(replay_open(list(letters), by=operation.by, operation_id=operation.id))


def _retry(operation: Operation, _action: Action, ids: Sequence[uuid.UUID]) -> int:
    return len(retry_many(ids, by=operation.by))


def _run_now(_operation: Operation, _action: Action, ids: Sequence[uuid.UUID]) -> int:
    return len(run_now_many(ids))


_APPLY: Final[dict[OperationKind, Callable[[Operation, Any, Sequence[uuid.UUID]], int]]] = {
    OperationKind.CANCEL: _cancel,
    OperationKind.REPRIORITISE: _reprioritise,
    OperationKind.REPLAY: _replay,
    OperationKind.RETRY: _retry,
    OperationKind.RUN_NOW: _run_now,
}
