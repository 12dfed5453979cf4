"""Show the data of an encrypted task to a person who may see them, and record that."""

from collections.abc import Callable
from typing import Any

from django.db.models import QuerySet

from queue_app import encryption
from queue_app.core.ids import Id, parse_id
from queue_app.core.redaction import redact, redact_value
from queue_app.displayed_payload import displayed_payload
from queue_app.exceptions import TaskNotFound
from queue_app.models import Signal, StepResult, Task, TaskAttempt, TaskLog, TaskPayload, TaskResult
from queue_app.sql.database import alias, atomic

PERMISSION = "queue_app.view_encrypted"


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
