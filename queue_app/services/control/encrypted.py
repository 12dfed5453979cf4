"""Stored data of encrypted tasks: show them to a person who may see them; bring them under the newest key.

``reencrypt`` also encrypts what was stored before its type was encrypted. It replaces a value only if it is still the
one that was read. Crash points: a page of an operation is one transaction; the next page begins after it, and a
repetition changes nothing.
"""

import json
import logging
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from django.db.models import Q, QuerySet

from queue_app import encryption
from queue_app.core.ids import Id, parse_id
from queue_app.core.redaction import HIDDEN, is_sealed, redact, redact_value
from queue_app.encryption import SHARED, applies_to, resealed, seal, seal_call
from queue_app.encryption.displayed import displayed_payload
from queue_app.exceptions import TaskNotFound, Undecryptable
from queue_app.models import (
    DeadLetter,
    Schedule,
    Signal,
    StepResult,
    Task,
    TaskAttempt,
    TaskLog,
    TaskPayload,
    TaskResult,
    WorkflowNode,
)
from queue_app.models.schedule import SEALED_FIELDS
from queue_app.sql.database import alias, atomic

logger = logging.getLogger("taskqueue")

PERMISSION = "queue_app.view_encrypted"
#: Model, column, whether it is JSON (else text), and whether the task type is authenticated with the value.
_COLUMNS: Final[tuple[tuple[Any, str, bool, bool], ...]] = (
    (TaskResult, "value", True, True),
    (TaskLog, "lines", False, True),
    (StepResult, "value", True, False),
    (Signal, "payload", True, False),
    (WorkflowNode, "compensation", True, False),
)


def decrypt(task_id: Id, record: Callable[[], object]) -> dict[str, Any]:
    """Return the arguments, result, errors, log lines, steps and signals of a task.

    Values that are masked elsewhere stay masked. The caller checks ``PERMISSION``, and ``record`` writes who reads.
    Raises ``TaskNotFound``, ``Undecryptable`` and ``EncryptionUnavailable``.
    """
    found = parse_id(task_id)
    with atomic():
        task = Task.objects.using(alias()).filter(pk=found).first()
        payload = TaskPayload.objects.using(alias()).filter(pk=found).first()
        if task is None or payload is None:
            raise TaskNotFound(f"There is no task {task_id}.")
        kind = task.task_type
        payload.args, payload.parameters = encryption.call_of(kind, payload.args, payload.parameters)
        secrets, args, parameters = displayed_payload(kind, payload)
        attempts = [
            (row.attempt, *encryption.failure_texts(kind, row.message, row.traceback))
            for row in _of(TaskAttempt, found).order_by("attempt")
        ]
        values: dict[str, Any] = {
            "args": args,
            "parameters": parameters,
            "result": [encryption.opened_if(row.value, kind) for row in _of(TaskResult, found)],
            "steps": {row.name: encryption.opened_if(row.value, "") for row in _of(StepResult, found)},
            "signals": [
                {"name": row.name, "payload": encryption.opened_if(row.payload, "")} for row in _of(Signal, found)
            ],
        }
        shown: dict[str, Any] = redact_value(values, secrets)
        shown["result"] = shown["result"][0] if shown["result"] else None
        shown["attempts"] = [
            {"attempt": number, "message": redact(message, secrets), "traceback": redact(traceback, secrets)}
            for number, message, traceback in attempts
        ]
        shown["logs"] = [
            {"attempt": row.attempt, "lines": redact(encryption.opened_if(row.lines, kind), secrets).split("\n")}
            for row in _of(TaskLog, found).order_by("attempt")
        ]
        record()
    return shown


def _of(model: Any, task_id: Any) -> QuerySet[Any]:
    rows: QuerySet[Any] = model.objects.using(alias()).filter(task_id=task_id)
    return rows


def reencrypt(ids: Sequence[uuid.UUID]) -> set[uuid.UUID]:
    """Encrypt the data of tasks with the newest key, in the caller's transaction; return the tasks that changed.

    A value that its key does not decrypt stays as it is. Raises ``EncryptionUnavailable`` without a key, and
    ``Undecryptable`` if the key of a value is missing.
    """
    types = dict(Task.objects.using(alias()).filter(pk__in=ids).values_list("pk", "task_type"))
    changed: set[uuid.UUID] = set()
    for model, column, is_json, is_bound in _COLUMNS:
        for row in model.objects.using(alias()).filter(task_id__in=types):
            task_type = types[row.task_id]
            with _skipping_unreadable("task", row.task_id):
                _replace(row, column, task_type, SHARED if not is_bound else task_type, changed.add, is_json=is_json)
    for payload in TaskPayload.objects.using(alias()).filter(pk__in=types):
        with _skipping_unreadable("task", payload.pk):
            _replace_call(payload, types[payload.pk], changed.add)
    for attempt in TaskAttempt.objects.using(alias()).filter(task_id__in=types):
        with _skipping_unreadable("task", attempt.task_id):
            _replace_failure(attempt, types[attempt.task_id], changed.add)
    _reencrypt_shared(types)
    return changed


@contextmanager
def _skipping_unreadable(kind: str, found_id: uuid.UUID | None) -> Iterator[None]:
    """Log a value that its key does not decrypt: no further key would. A missing key stops the operation instead."""
    try:
        yield
    except Undecryptable as error:
        if error.is_key_missing:
            raise
        logger.error("a value of %s %s stays as it is: %s", kind, found_id, error)  # noqa: TRY400 - it says all


def _replace(  # noqa: PLR0913 - by name
    row: Any, column: str, task_type: str, context: str, note: Callable[[uuid.UUID], object], *, is_json: bool
) -> None:
    value = getattr(row, column)
    if value is None:
        return
    text = resealed(
        json.dumps(value) if is_json and not is_sealed(value) else value, context, applies=applies_to(task_type)
    )
    if text is not None and _update(row, {column: value}, {column: json.loads(text) if is_json else text}):
        note(row.task_id)


def _update(row: Any, old: dict[str, Any], new: dict[str, Any]) -> bool:
    return bool(type(row).objects.using(alias()).filter(pk=row.pk, **old).update(**new))


def _replace_call(payload: TaskPayload, task_type: str, note: Callable[[uuid.UUID], object]) -> None:
    old = {"args": payload.args, "parameters": payload.parameters}
    if is_sealed(payload.args):
        text = resealed(payload.args, task_type, applies=True)
        new = None if text is None else (text, "{}")
    else:
        new = seal_call(task_type, json.dumps(payload.args), json.dumps(payload.parameters))
        new = new if is_sealed(new[0]) else None
    if new is not None and _update(payload, old, {"args": json.loads(new[0]), "parameters": json.loads(new[1])}):
        note(payload.pk)


def _replace_failure(attempt: TaskAttempt, task_type: str, note: Callable[[uuid.UUID], object]) -> None:
    if is_sealed(attempt.traceback):
        text = resealed(attempt.traceback, task_type, applies=True)
    elif applies_to(task_type):
        text = seal(json.dumps([attempt.message, attempt.traceback]), task_type)
        DeadLetter.objects.using(alias()).filter(task_id=attempt.task_id).update(message=HIDDEN)
    else:
        text = None
    if text is not None and _update(attempt, {"traceback": attempt.traceback}, {"traceback": text, "message": HIDDEN}):
        note(attempt.task_id)


def _reencrypt_shared(types: dict[uuid.UUID, str]) -> None:
    """Do the same for signals to the workflows of these tasks."""
    flows = Task.objects.using(alias()).filter(pk__in=types, workflow_id__isnull=False).values("workflow_id")
    for sent in Signal.objects.using(alias()).filter(Q(workflow_id__in=flows), payload__isnull=False):
        with _skipping_unreadable("workflow", sent.workflow_id):
            if is_sealed(sent.payload) and (text := resealed(sent.payload, SHARED, applies=True)):
                _update(sent, {"payload": sent.payload}, {"payload": json.loads(text)})


def reencrypt_schedules() -> int:
    """Store the calls of all schedules again, which encrypts them with the newest key; return how many."""
    found = Schedule.objects.using(alias()).select_for_update().order_by("id")
    for schedule in found:
        schedule.save(using=alias(), update_fields=SEALED_FIELDS)
    return len(found)
