"""Close dead letters: replay queues the task again, discard leaves it dead.

A replay resets the counts of retries and crashes. The attempt number, which fences, keeps rising,
and the errors of earlier attempts stay. The dead letter records who replayed it and when.

Crash points: task, parameters and dead letter change in one transaction, so before its commit
nothing has happened. Between the commit and the push the task is queued but not indexed,
and the reconciler pushes it.
"""

import uuid
from typing import Any

from queue_app import signals
from queue_app.core.ids import Id, parse_id
from queue_app.core.masking import same
from queue_app.core.records import TaskRef
from queue_app.core.sentence import sentence
from queue_app.displayed_payload import edited_payload
from queue_app.encryption import call_of, seal_call
from queue_app.exceptions import InvalidTransition
from queue_app.models import DeadLetter, TaskPayload
from queue_app.models.columns import USER_LENGTH
from queue_app.models.workflow import Closed
from queue_app.services.advance import changing, give_up
from queue_app.services.enqueue.validate import check_payloads, check_reason
from queue_app.services.lifecycle.settle import queued_again, settle_later
from queue_app.services.notify import events
from queue_app.services.notify.index import send_on_commit
from queue_app.services.read.dead_letters import DeadLetterFilter, matching, refusal
from queue_app.sql import dead_letters as rows
from queue_app.sql import schedules
from queue_app.sql.claim import statuses
from queue_app.sql.database import atomic
from queue_app.sql.workflow_advance import workflows_of
from queue_app.sql.workflow_settle import undone_among

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
            schedules.reopen([task.id for _, task in moved])
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
