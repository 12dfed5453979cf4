"""Carry out operations in bounded steps: cancel, reprioritise, replay, retry, delete, encrypt or run many tasks now.

The scheduler advances every operation (``run_operations``). A caller that does not want to wait for
the scheduler may advance its own.

Each step is one transaction on the locked row of its operation: the tasks, the dead letters and the
progress change together. A process that finds the row locked leaves the step to the other process.

Crash points: a crash during a step undoes it, and the next step repeats it. Between two steps the row
records the progress. Between the commit of a step and the index, the reconciler repairs the index, as
for a single task.
"""

import math
import time
import uuid
from collections.abc import Callable, Collection, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from django.db.models import Q

from queue_app import signals
from queue_app.core import rooms
from queue_app.core.priorities import Band, parse_band
from queue_app.models import DeadLetter, Operation
from queue_app.models.operation import OperationKind, OperationState, OperationTarget
from queue_app.services.control.encrypted import reencrypt
from queue_app.services.lifecycle.actions import (
    cancel_many,
    delete_many,
    replay_open,
    reprioritise_many,
    retry_many,
    run_now_many,
)
from queue_app.services.notify.index import send_on_commit
from queue_app.services.operations.request import Action, OperationOptions, applicable, get_operation, start_operation
from queue_app.services.read import dead_letters
from queue_app.services.read.dead_letters import DeadLetterFilter
from queue_app.services.read.task_filter import TaskFilter
from queue_app.sql import dead_letters as rows
from queue_app.sql.database import atomic, clock

#: Tasks of one transaction.
STEP: Final = 500
STEPS: Final = 10
#: Ids of changed tasks that an operation remembers, for its page.
KEPT: Final = 200
#: Operations that one round advances.
ROUND: Final = 100
#: Unused time that an operation with a rate may make up for at once, after no scheduler ran for a while.
CATCH_UP_SECONDS: Final = 2.0
#: (id, time of death) of tasks or dead letters; an operation of a room may put another time there.
type Page = Sequence[tuple[uuid.UUID, datetime | None]]

_PROGRESS: Final = [
    "state", "changed", "skipped", "failed_again", "finished_at", "cleared_at", "paced_at", "after_id", "after_died_at",
    "result",
]  # fmt: skip


def run_operations(*, steps: int = STEPS) -> int:
    """Advance every running operation by at most ``steps`` steps; return how many tasks it handled.

    The scheduler calls it about once a second. It is safe to run twice at once, and costs one query when
    there is nothing to do. An operation's error is raised after the other operations had their turn.
    """
    handled = 0
    failure: Exception | None = None
    for _ in range(steps):
        running = (
            Operation.objects.filter(state=OperationState.RUNNING).exclude(kind=OperationKind.SIMULATE).order_by("id")
        )
        moved = 0
        for operation_id in running.values_list("id", flat=True)[:ROUND]:
            try:
                moved += advance(operation_id)
            except Exception as error:  # noqa: BLE001 - raised below, so that the other operations continue
                failure = failure or error
        handled += moved
        if not moved:
            break
    if failure is not None:
        raise failure
    return handled


def advance_for(operation_id: uuid.UUID, seconds: float) -> Operation:
    """Advance one operation for up to ``seconds``, so that a small one ends at once; return its new state."""
    until = time.monotonic() + seconds
    while advance(operation_id) and time.monotonic() < until:
        pass
    return get_operation(operation_id)


def carry_out(
    action: Action,
    wanted: TaskFilter | DeadLetterFilter,
    options: OperationOptions | None = None,
    *,
    by: str,
    reason: str = "",
) -> tuple[Operation, set[uuid.UUID]]:
    """Start an operation and take its first step in the same transaction.

    Return the operation with the ids of the tasks (or dead letters) that it changed. An operation on
    at most ``STEP`` ids has then ended. Raises ``InvalidTaskData``.
    """
    changed: set[uuid.UUID] = set()
    with atomic():
        operation = start_operation(action, wanted, options, by=by, reason=reason)
        advance(operation.id, changed)
    return operation, changed


def advance(operation_id: uuid.UUID, changed: set[uuid.UUID] | None = None) -> int:
    """Take one step of an operation; return how many tasks it handled.

    Returns 0 when the operation has ended, has to wait, or another process advances it. Adds the ids of
    the tasks (or dead letters) that the step changed to ``changed``.
    """
    with atomic():
        running = Operation.objects.select_for_update(skip_locked=True).filter(state=OperationState.RUNNING)
        running = running.exclude(kind=OperationKind.SIMULATE)  # a process of its own carries it out
        operation = running.filter(pk=operation_id).first()
        if operation is None:
            return 0
        now = clock()
        handled = 0
        if not _stop_if_first_failed(operation, now):
            handled = _take_step(operation, _allowance(operation, now), changed)
        if operation.state != OperationState.RUNNING:
            operation.finished_at = now
            if operation.kind == OperationKind.REPLAY:
                operation.failed_again, _ended_otherwise = rows.outcomes(operation.id)
        operation.save(update_fields=_PROGRESS)
    if operation.state != OperationState.RUNNING:
        send_on_commit(signals.operation_ended, operation=operation)
    return handled


def changed_tasks(operation: Operation) -> list[Any]:
    """Return the ids of the tasks that an operation changed, at most the first ``KEPT``."""
    if operation.kind == OperationKind.REPLAY:
        letters = DeadLetter.objects.filter(operation_id=operation.pk).order_by("died_at")
        return list(letters.values_list("task_id", flat=True)[:KEPT])
    return list((operation.result or {}).get("tasks", ()))


# -- how many ----------------------------------------------------------------------


def _stop_if_first_failed(operation: Operation, clock: datetime) -> bool:
    """Stop the operation if all of its first tasks have failed again; return whether it was stopped."""
    if not operation.stop_after_failures or operation.cleared_at is not None or not operation.changed:
        return False
    failed, ended_otherwise = rows.outcomes(operation.id, operation.stop_after_failures)
    operation.failed_again = failed
    if ended_otherwise:
        operation.cleared_at = clock
    elif failed >= operation.stop_after_failures:
        operation.state = OperationState.STOPPED
        return True
    return False


def _allowance(operation: Operation, clock: datetime) -> int:
    """Return how many tasks the operation may handle now."""
    allowed = STEP
    if operation.stop_after_failures and operation.cleared_at is None:
        allowed = min(allowed, operation.stop_after_failures - operation.changed)
    if operation.limit is not None:
        allowed = min(allowed, operation.limit - operation.changed - operation.skipped)
    if operation.rate is not None and operation.paced_at is not None:
        window = max(CATCH_UP_SECONDS, 1 / operation.rate)
        operation.paced_at = max(operation.paced_at, clock - timedelta(seconds=window))
        seconds = (clock - operation.paced_at).total_seconds()
        allowed = min(allowed, math.floor(seconds * operation.rate + 1e-6))  # against rounding: times have microseconds
    return max(allowed, 0)


# -- which, and what ---------------------------------------------------------------


def _take_step(operation: Operation, allowed: int, changed_ids: set[uuid.UUID] | None) -> int:
    """Apply the action to the next ``allowed`` tasks; end the operation when no more are left."""
    found = _next(operation, allowed + 1) if allowed else []  # one more shows whether this is the last page
    page = found[:allowed]
    if page:
        changed = (_APPLY | rooms.named("operation_kinds"))[operation.kind](operation, page)
        if changed_ids is not None:
            changed_ids.update(changed)
        if operation.target == OperationTarget.TASKS and operation.kind != OperationKind.REPLAY:
            kept = [str(task_id) for task_id in _ids(page) if task_id in changed]
            operation.result = {"tasks": [*changed_tasks(operation), *kept][:KEPT]}
        operation.changed += len(changed)
        operation.skipped += len(page) - len(changed)
        operation.after_id, operation.after_died_at = page[-1]
        if operation.rate is not None and operation.paced_at is not None:
            operation.paced_at += timedelta(seconds=len(changed) / operation.rate)
    is_at_limit = operation.limit is not None and operation.changed + operation.skipped >= operation.limit
    if is_at_limit or (allowed and len(found) <= allowed):
        # Includes tasks that were on no page, because they were claimed, ended, purged or replayed before their turn.
        operation.skipped = max(0, operation.total - operation.changed)
        operation.state = OperationState.DONE
    return len(page)


def _next(operation: Operation, count: int) -> list[tuple[uuid.UUID, datetime | None]]:
    """Return (id, time of death) of the next tasks that existed when the operation was requested."""
    if operation.target == OperationTarget.DEAD_LETTERS:
        return _next_letters(operation, count)
    if operation.target in (of_rooms := rooms.named("operation_targets")):
        return list(of_rooms[operation.target](operation, count))
    tasks = applicable(_action_of(operation), TaskFilter.from_json(operation.filter))
    tasks = tasks.filter(created_at__lte=operation.created_at)
    newest = _takes_newest(operation)
    if operation.after_id is not None:
        tasks = tasks.filter(**{"id__lt" if newest else "id__gt": operation.after_id})
    return [
        (task_id, None) for task_id in tasks.order_by("-id" if newest else "id").values_list("id", flat=True)[:count]
    ]


def _takes_newest(operation: Operation) -> bool:
    return "order" in operation.arguments


def _next_letters(operation: Operation, count: int) -> list[tuple[uuid.UUID, datetime | None]]:
    letters = dead_letters.matching(dead_letters.DeadLetterFilter.from_json(operation.filter))
    letters = letters.open().filter(died_at__lte=operation.created_at)
    after, newest = operation.after_died_at, _takes_newest(operation)
    if after is not None:
        way = "lt" if newest else "gt"
        further = Q((f"died_at__{way}", after)) | Q(("died_at", after), (f"id__{way}", operation.after_id))
        letters = letters.filter(further, Q((f"died_at__{way}e", after)))
    order = ("-died_at", "-id") if newest else ("died_at", "id")
    return list(letters.order_by(*order).values_list("id", "died_at")[:count])


def _action_of(operation: Operation) -> Action:
    name = operation.arguments.get("priority")
    return Action(kind=OperationKind(operation.kind), band=None if name is None else parse_band(name))


def _replay(operation: Operation, page: Page) -> list[uuid.UUID]:
    ids = _ids(page)
    if operation.target == OperationTarget.TASKS:
        ids = list(DeadLetter.objects.open().filter(task_id__in=ids).order_by("id").values_list("id", flat=True))
    return [letter_id for letter_id, _ in replay_open(list(ids), by=operation.by, operation_id=operation.id)]


def _ids(page: Page) -> list[uuid.UUID]:
    return [found_id for found_id, _ in page]


#: Each applies an action to the tasks that still allow it, and returns their ids (of dead letters, for a replay).
_APPLY: Final[dict[str, Callable[[Operation, Page], Collection[uuid.UUID]]]] = {
    OperationKind.CANCEL: lambda _, page: cancel_many(_ids(page)),
    OperationKind.REPRIORITISE: lambda operation, page: reprioritise_many(
        _ids(page), Band(_action_of(operation).band or 0)
    ),
    OperationKind.REPLAY: _replay,
    OperationKind.RETRY: lambda operation, page: retry_many(_ids(page), by=operation.by),
    OperationKind.RUN_NOW: lambda _, page: run_now_many(_ids(page)),
    OperationKind.DELETE: lambda _, page: delete_many(_ids(page)),
    OperationKind.REENCRYPT: lambda _, page: reencrypt(_ids(page)),
}
