"""Change single tasks on request: cancel, reprioritise, run now, retry, run again, delete.

Each action on many tasks skips the tasks that it does not apply to; each action on one task raises instead.
Ids may be texts, such as ``result.id``.

A cancelled task that waits ends at once. A running one is asked to stop: the index wakes its worker, which reads the
request from the rows, as it does with every heartbeat. The task then ends as cancelled, even if the attempt succeeds;
but if something undoes it, or it undoes another, it then is completed.

Crash points: after the commit and before the index, the index proposes a cancelled task once, and the row refuses it;
a task that was queued again is missing from the index until the reconciler pushes it. A worker that was not woken
reads the request to stop with its next heartbeat; if it is dead, the reaper cancels the task. A deletion is one
statement; if the release of the last attempt was lost, the reconciler ends a lease without a row.
"""

import uuid
from collections.abc import Sequence
from typing import Any

from queue_app import registry, signals
from queue_app.core import rooms
from queue_app.core.ids import Id, parse_id
from queue_app.core.priorities import Band, parse_band
from queue_app.core.records import Enqueued, NewTask, TaskRef, call_options
from queue_app.core.redaction import same
from queue_app.core.sentence import sentence
from queue_app.core.states import PENDING, Status, predicate
from queue_app.encryption import call_of, seal_call
from queue_app.encryption.displayed import edited_payload
from queue_app.exceptions import InvalidTransition, TaskNotFound
from queue_app.models import DeadLetter, Task, TaskPayload
from queue_app.models.fields import USER_LENGTH
from queue_app.models.workflow import Closed
from queue_app.services.advance import advance, changing, give_up
from queue_app.services.enqueue.store import enqueue
from queue_app.services.enqueue.validate import check_payloads, check_reason
from queue_app.services.lifecycle.dependencies import notify_cancelled, queued_again, settle_later
from queue_app.services.lifecycle.results import filled_in
from queue_app.services.notify import events
from queue_app.services.notify.index import push_on_commit, send_on_commit
from queue_app.services.read.dead_letters import DeadLetterFilter, matching, refusal
from queue_app.sql import dead_letters as rows, upkeep, waiting
from queue_app.sql.claim import statuses
from queue_app.sql.database import atomic, fetch_all, lock_rows, once_more_after_deadlock
from queue_app.sql.workflow_advance import workflows_of
from queue_app.sql.workflow_settle import compensations_among, undone_among

# Close dead letters: replay queues the task again, discard leaves it dead.
#
# A replay resets the counts of retries and crashes. The attempt number, which fences, keeps rising,
# and the errors of earlier attempts stay. The dead letter records who replayed it and when.
#
# Crash points: task, parameters and dead letter change in one transaction, so before its commit
# nothing has happened. Between the commit and the push the task is queued but not indexed,
# and the reconciler pushes it.

BATCH = 500
#: Maximum number of dead letters that one call discards; the caller may repeat the call.
MAX_AT_ONCE = 10_000


def replay(
    dead_letter_id: Id, *, by: str, parameters: dict[str, Any] | None = None, args: list[Any] | None = None
) -> TaskRef:
    """Queue the task of a dead letter again; return the task with its place.

    ``parameters`` and positional ``args`` replace those of the task. They may be edited from the displayed, masked
    ones: a value that is still masked keeps its true value. Raises ``DeadLetterNotFound``, ``InvalidTransition`` when
    the dead letter was replayed or discarded before, its task was purged, or what its workflow had completed was
    undone; and ``InvalidTaskData`` for parameters that must not be stored.
    """
    found = parse_id(dead_letter_id)
    with atomic():
        texts = None if parameters is None and args is None else _edited(found, parameters, args)
        moved = replay_open([found], by=by)
        if not moved:
            letter = DeadLetter.objects.open().filter(pk=found).first()
            raise (letter and undone_refusal(letter.task_id)) or refusal(found, "replayed")
        if texts is not None:
            rows.edit_payload(found, *texts)
    return moved[0][1]


def replay_open(
    ids: list[uuid.UUID], *, by: str, operation_id: uuid.UUID | None = None
) -> list[tuple[uuid.UUID, TaskRef]]:
    """Replay the open dead letters among ``ids``, in one transaction; return (dead letter id, task) of each.

    Leaves alone those of workflows that are undone, except compensations.
    """
    tasks = rows.tasks_of(ids)
    with atomic(), changing(tasks, alone=True) as workflows:
        if workflows and (undone := undone_among(tasks, workflows)):
            ids = list(DeadLetter.objects.filter(pk__in=ids).exclude(task_id__in=undone).values_list("id", flat=True))
        moved = rows.replay(ids, by[:USER_LENGTH], operation_id)
        blocked = queued_again([task for _, task in moved])
        events.push_queued_again([task for _, task in moved if task.id not in blocked])
        if moved:
            rooms.call("queued_again", [task.id for _, task in moved])
    if moved:
        send_on_commit(signals.dead_letters_replayed, count=len(moved), by=by, operation_id=operation_id)
    return moved


def undone_refusal(task_id: uuid.UUID) -> InvalidTransition | None:
    """Return the error that a task must not run again because its workflow was undone; ``None`` if it was not."""
    if not undone_among([task_id], workflows_of([task_id])):
        return None
    text = sentence("What had completed was undone; enqueue a new workflow.")
    return InvalidTransition(text, status=statuses([task_id])[task_id])


def _edited(
    dead_letter_id: uuid.UUID, parameters: dict[str, Any] | None, args: list[Any] | None
) -> tuple[str, str] | None:
    """Return the edited arguments and parameters as JSON texts, with true values for masks; ``None``: nothing changed.

    Locks the dead letter, so that they cannot change between comparison and replacement.
    """
    list(check_payloads([(args or [], parameters or {})]))  # limits the depth
    letter = DeadLetter.objects.select_for_update().filter(pk=dead_letter_id).first()
    payload = TaskPayload.objects.filter(pk=letter.task_id).first() if letter else None
    if letter is None or payload is None:
        raise refusal(dead_letter_id, "replayed")
    edited = edited_payload(letter.task_type, payload, args=args, parameters=parameters)
    if same(list(edited), list(call_of(letter.task_type, payload.args, payload.parameters))):
        return None
    return seal_call(letter.task_type, *next(check_payloads([edited])))


def discard(dead_letter_id: Id, *, by: str, reason: str = "") -> None:
    """Close a dead letter for good; raise ``DeadLetterNotFound``, or ``InvalidTransition`` when it is closed."""
    found = parse_id(dead_letter_id)
    if not discard_open([found], by=by, reason=reason):
        raise refusal(found, "discarded")


def discard_open(ids: list[uuid.UUID], *, by: str, reason: str = "", how: Closed = Closed.SKIPPED) -> list[uuid.UUID]:
    """Close the open dead letters among ``ids``; return their ids. Raises ``InvalidTaskData`` for the reason.

    ``how`` says what became of those that should have undone another task.
    """
    reason = check_reason(reason)
    tasks = rows.tasks_of(ids)
    with changing(tasks) as workflows:
        discarded = rows.discard(ids, by[:USER_LENGTH], reason)
        if workflows:
            give_up(rows.tasks_of(discarded), how, reason)
    settle_later(workflows)
    if discarded:
        send_on_commit(signals.dead_letters_discarded, count=len(discarded), by=by, reason=reason)
    return discarded


def discard_many(wanted: DeadLetterFilter, *, by: str, reason: str = "", limit: int | None = None) -> int:
    """Close the open dead letters that match a filter, oldest first; return how many.

    Closes at most ``limit``, and never more than ``MAX_AT_ONCE``. ``dead_letters.preview`` is its dry run.
    """
    check_reason(reason)
    left = MAX_AT_ONCE if limit is None else min(limit, MAX_AT_ONCE)
    done = 0
    while left > 0:
        open_now = matching(wanted).open().order_by("died_at", "id")
        ids = list(open_now.values_list("id", flat=True)[: min(left, BATCH)])
        if not ids:
            break
        done += len(discard_open(ids, by=by, reason=reason))
        left -= len(ids)
    return done


#: States from which ``retry`` can queue a task.
RETRIABLE = frozenset({Status.FAILED, Status.EXPIRED, Status.CANCELLED, Status.DEAD_LETTER})


def cancel(task_id: Id) -> Status:
    """Cancel one task; return its new status: cancelled, or executing when its worker was asked to stop.

    Raises ``TaskNotFound``, and ``InvalidTransition`` when the task has already ended, or undoes another.
    """
    found = parse_id(task_id)
    changed = cancel_many([found])
    if not changed:
        is_undoing = statuses([found]).get(found) in PENDING and compensations_among([found])
        undoes = sentence("it undoes another task; stop undoing its workflow instead")
        raise _refusal(found, undoes if is_undoing else sentence("it can no longer be cancelled"))
    return changed[found]


def cancel_many(ids: Sequence[Id]) -> dict[uuid.UUID, Status]:
    """Cancel the pending tasks among ``ids``, except compensations; return the new status of each."""
    found = [parse_id(given) for given in ids]
    with changing(found) as workflows:
        cancelled = waiting.cancel(found)
        notify_cancelled(cancelled)
        if workflows:
            advance({task.id: Status.CANCELLED for before, _, task in cancelled if before is not Status.EXECUTING})
    settle_later(workflows)
    return {
        task.id: Status.EXECUTING if before is Status.EXECUTING else Status.CANCELLED for before, _, task in cancelled
    }


def reprioritise(task_id: Id, band: Band | str) -> None:
    """Move one waiting task to a band or its name, in its order; raise ``TaskNotFound`` or ``InvalidTransition``."""
    if not reprioritise_many([task_id], band):
        raise _refusal(task_id, sentence("only waiting tasks have a priority to change"))


def reprioritise_many(ids: Sequence[Id], band: Band | str) -> set[uuid.UUID]:
    """Move the waiting tasks among ``ids`` to ``band``; return their ids."""
    changed = waiting.reprioritise([parse_id(given) for given in ids], parse_band(band))
    push_on_commit([task.entry for status, task in changed if status is Status.QUEUED])
    return {task.id for _, task in changed}


def run_now(task_id: Id) -> None:
    """Queue a scheduled task now; raise ``TaskNotFound``, or ``InvalidTransition`` when it is not scheduled."""
    if not run_now_many([task_id]):
        raise _refusal(task_id, sentence("only scheduled tasks can be run early"))


def run_now_many(ids: Sequence[Id]) -> set[uuid.UUID]:
    """Queue the scheduled tasks among ``ids``; return their ids."""
    return _queue_again(waiting.run_now([parse_id(given) for given in ids]))


def retry(task_id: Id, *, by: str = "") -> None:
    """Queue a task that ended without success again, with a fresh retry budget.

    The attempt number, which fences, keeps rising, and the errors of earlier attempts stay.
    A dead letter is replayed, which closes its record. To repeat a completed task, use ``run_again``.
    Raises ``TaskNotFound``, and ``InvalidTransition`` when the task has not ended or was completed, or when what its
    workflow had completed was undone.
    """
    if not retry_many([task_id], by=by):
        raise undone_refusal(parse_id(task_id)) or _refusal(
            task_id, sentence("only tasks that ended without success can be tried again")
        )


def retry_many(ids: Sequence[Id], *, by: str = "") -> set[uuid.UUID]:
    """Queue the tasks among ``ids`` that ended without success again; return their ids."""
    wanted = [parse_id(given) for given in ids]

    def retry_all() -> set[uuid.UUID]:
        with atomic(), changing(wanted, alone=True) as workflows:
            undone = undone_among(wanted, workflows) if workflows else set[uuid.UUID]()
            found = [task_id for task_id in wanted if task_id not in undone]
            open_letters = DeadLetter.objects.open().filter(task_id__in=found).order_by("id").select_for_update()
            letters = list(open_letters.values_list("id", flat=True))  # locked before tasks, as by every replay
            fetch_all(*lock_rows(found))
            replayed = replay_open(letters, by=by)
            return {task.id for _, task in replayed} | requeue(found)

    return once_more_after_deadlock(retry_all)


def run_again(task_id: Id, *, parameters: dict[str, Any] | None = None, args: list[Any] | None = None) -> Enqueued:
    """Enqueue a copy of a task, with ``parameters`` and positional ``args`` if given.

    Both may be edited from the displayed, masked ones: a value that is still masked keeps its true value.

    Raises ``TaskNotFound``, and ``InvalidTaskData`` for parameters that must not be stored.
    """
    found = parse_id(task_id)
    task = Task.objects.filter(pk=found).first()
    payload = TaskPayload.objects.filter(pk=found).first()
    if task is None or payload is None:
        raise TaskNotFound(f"There is no task {task_id}.")
    list(check_payloads([(args or [], parameters or {})]))  # limits the depth
    args, unmasked = edited_payload(task.task_type, payload, args=args, parameters=parameters)
    if task.workflow_id is not None:  # the copy is in no workflow
        args, unmasked = filled_in(task.workflow_id, args, unmasked)
    registry.get(task.task_type)  # refuse a type that no code knows: it could never run
    return enqueue(NewTask(args=args, parameters=unmasked, metadata=payload.metadata or {}, **call_options(task)))


def requeue(ids: Sequence[uuid.UUID]) -> set[uuid.UUID]:
    """Queue the tasks among ``ids`` that ended without success again, in the caller's transaction; return their ids.

    The caller holds the locks of their workflows alone. Tasks that still wait for others are blocked.
    """
    again = waiting.requeue(ids)
    blocked = queued_again(again)
    _queue_again([task for task in again if task.id not in blocked])
    return {task.id for task in again}


def _queue_again(tasks: list[TaskRef]) -> set[uuid.UUID]:
    events.push_queued_again(tasks)
    if tasks:
        rooms.call("queued_again", [task.id for task in tasks])
    return {task.id for task in tasks}


def _refusal(task_id: Id, why: str) -> TaskNotFound | InvalidTransition:
    found = parse_id(task_id)
    status = statuses([found]).get(found)
    if status is None:
        return TaskNotFound(sentence("There is no task %(id)s.", id=str(task_id)))
    text = sentence("The task %(state)s; %(why)s.", state=predicate(status), why=why)
    return InvalidTransition(text, status=status)


def delete(task_id: Id) -> None:
    """Delete one ended task; raise ``TaskNotFound``, and ``InvalidTransition`` when it has not ended."""
    found = parse_id(task_id)
    if delete_many([found]):
        return
    task = Task.objects.filter(pk=found).only("status", "workflow_id").first()
    if task is None:
        raise TaskNotFound(f"There is no task {found}.")
    why = sentence("it belongs to a workflow, and is purged with it")
    if task.workflow_id is None:
        why = sentence("it %(state)s", state=predicate(task.status))
    raise InvalidTransition(sentence("The task cannot be deleted: %(why)s.", why=why), status=task.status)


def delete_many(ids: Sequence[Id]) -> set[uuid.UUID]:
    """Delete the ended tasks among ``ids`` that belong to no workflow, with their dead letters; return their ids."""
    rooms.call("before_deletion")
    return upkeep.delete_ended([parse_id(given) for given in ids])
