"""Replay a dead letter: its task is queued again, as if it had never failed.

The retries and crashes that it used up are forgotten; the attempt, which fences, goes on
rising, and the errors of earlier attempts stay. The record keeps who replayed it and when.

Crash points: task, parameters and record change in one transaction, so before its commit
nothing has happened. Between the commit and the push the task is queued but not indexed,
and the reconciler pushes it.
"""

from __future__ import annotations

import uuid
from typing import Any

from queue_app import signals
from queue_app.core.records import TaskRef
from queue_app.core.unmasking import same, unmask
from queue_app.displayed_payload import displayed_payload
from queue_app.models import DeadLetter, TaskPayload
from queue_app.models.audit_entry import REASON_LENGTH
from queue_app.models.columns import USER_LENGTH
from queue_app.services.enqueue.validate import check_parameters, check_reason
from queue_app.services.notify import events
from queue_app.services.notify.index import push_on_commit
from queue_app.services.read.dead_letters import DeadLetterFilter, matching, refusal
from queue_app.sql import dead_letters as rows
from queue_app.sql.database import atomic


def replay(dead_letter_id: uuid.UUID, *, by: str, parameters: dict[str, Any] | None = None) -> TaskRef:
    """Queue the task of a dead letter again; return the task with its place.

    With ``parameters`` it runs with those instead. They may be edited from what is shown of
    the task, masks and all: a value that was left masked stays what it is. Raises
    ``DeadLetterNotFound``, ``InvalidTransition`` when it was replayed or discarded before or
    its task was purged, and ``InvalidTaskData`` for parameters that must not be stored.
    """
    with atomic():
        text = None if parameters is None else _edited(dead_letter_id, parameters)
        moved = replay_open([dead_letter_id], by=by)
        if not moved:
            raise refusal(dead_letter_id, "replayed")
        if text is not None:
            rows.edit_parameters(dead_letter_id, text)
    return moved[0][1]


def replay_open(
    ids: list[uuid.UUID], *, by: str, operation_id: uuid.UUID | None = None
) -> list[tuple[uuid.UUID, TaskRef]]:
    """Queue the tasks of those dead letters that are open; return (id of the dead letter, task) of each.

    In one transaction; others are left as they are.
    """
    with atomic():
        moved = rows.replay(ids, by[:USER_LENGTH], operation_id)
        push_on_commit([task.entry for _, task in moved], events=events.of_queued_again(task for _, task in moved))
    if moved:
        signals.dead_letters_replayed.send(None, count=len(moved), by=by, operation_id=operation_id)
    return moved


def _edited(dead_letter_id: uuid.UUID, parameters: dict[str, Any]) -> str | None:
    """Return the edited parameters as JSON text, true values behind the masks; ``None`` when nothing is other.

    Locks the dead letter, so that what is compared is what will be replaced.
    """
    check_parameters(parameters)  # its depth, before anything walks through it
    letter = DeadLetter.objects.select_for_update().filter(pk=dead_letter_id).first()
    payload = TaskPayload.objects.filter(pk=letter.task_id).first() if letter else None
    if letter is None or payload is None:
        raise refusal(dead_letter_id, "replayed")
    stored = payload.parameters
    meant = unmask(parameters, displayed_payload(letter.task_type, payload)[2], stored)
    return None if same(meant, stored) else check_parameters(meant)


BATCH = 500
#: What one call discards at most, so that it ends; the caller may ask again.
MAX_AT_ONCE = 10_000


def discard(dead_letter_id: uuid.UUID, *, by: str, reason: str = "") -> None:
    """Close a dead letter for good.

    Raises ``DeadLetterNotFound``, and ``InvalidTransition`` when it was replayed or
    discarded before.
    """
    if not discard_open([dead_letter_id], by=by, reason=reason):
        raise refusal(dead_letter_id, "discarded")


def discard_open(ids: list[uuid.UUID], *, by: str, reason: str = "") -> list[uuid.UUID]:
    """Close those of the dead letters that are open; return their ids. Raises ``InvalidTaskData`` for the reason."""
    discarded = rows.discard(ids, by[:USER_LENGTH], check_reason(reason, REASON_LENGTH))
    if discarded:
        signals.dead_letters_discarded.send(None, count=len(discarded), by=by, reason=reason)
    return discarded


def discard_many(wanted: DeadLetterFilter, *, by: str, reason: str = "", limit: int | None = None) -> int:
    """Close the open dead letters that a filter means, oldest first; return how many.

    At most ``limit``, and never more than ``MAX_AT_ONCE``. See ``dead_letters.preview`` for
    a dry run.
    """
    check_reason(reason, REASON_LENGTH)
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
