"""Show where a running task is now: staff ask its worker for the stack, and the answer is kept for some minutes.

The index wakes the worker, which reads the question with a heartbeat and answers with its next report. A worker that
was not woken reads it with its usual heartbeat. An answer of an attempt that lost its task is dropped.
"""

from datetime import timedelta
from typing import Final

from django.db.models.functions import Now
from django.utils import timezone

from queue_app.core.ids import Id, parse_id
from queue_app.core.redaction import redact
from queue_app.core.sentence import age, sentence
from queue_app.core.states import Status
from queue_app.encryption.displayed import displayed_payload
from queue_app.exceptions import InvalidTransition, TaskNotFound
from queue_app.index import Index
from queue_app.models import Task, TaskPayload, TaskStack, Worker
from queue_app.models.worker import LIVING
from queue_app.services.notify.index import on_commit
from queue_app.sql.database import alias

PERMISSION: Final = "queue_app.view_stack"
KEPT: Final = timedelta(minutes=10)
#: What a worker answers if there is no stack -> the sentence.
NO_STACK: Final = {
    "waiting": sentence("The attempt has not started: it waits for a slot of its worker."),
    "silent": sentence("The process of the attempt has not answered within a second: it is stopped or frozen."),
}


def ask(task_id: Id) -> None:
    """Ask the worker of a running task for its stack. Raises ``TaskNotFound`` and ``InvalidTransition``."""
    task = Task.objects.using(alias()).filter(pk=parse_id(task_id)).first()
    if task is None:
        raise TaskNotFound(f"There is no task {task_id}.")
    if task.status != Status.EXECUTING or task.worker_id is None:
        why = sentence("Only a running task has a stack; this one is %(state)s.", state=sentence(task.status))
        raise InvalidTransition(why, status=task.status)
    asked = {"attempt": task.attempt, "worker_id": task.worker_id, "asked_at": Now(), "answered_at": None, "text": ""}
    TaskStack.objects.using(alias()).update_or_create(task_id=task.pk, defaults=asked)
    on_commit(Index.notify_workers, "tell", [task.worker_id])


def read(task: Task) -> TaskStack | None:
    """Return the last question about the present attempt, its text without secrets, or why there is none yet."""
    attempts = TaskStack.objects.using(alias()).filter(pk=task.pk, attempt=task.attempt)
    found: TaskStack | None = attempts.filter(asked_at__gte=timezone.now() - KEPT).first()
    if found is None:
        return None
    if found.answered_at is None:
        found.text = _silence(found)
    elif found.text in NO_STACK:
        found.text = NO_STACK[found.text]
    else:
        payload = TaskPayload.objects.using(alias()).filter(pk=task.pk).first()
        found.text = redact(found.text, displayed_payload(task.task_type, payload)[0])
    return found


def _silence(found: TaskStack) -> str:
    worker = Worker.objects.using(alias()).filter(pk=found.worker_id).first()
    if worker is None or worker.status not in LIVING:
        return sentence("The worker has ended.")
    seconds = worker.heartbeat_seconds
    if timezone.now() - found.asked_at < timedelta(seconds=2 * seconds):
        return sentence("Asked. The worker answers with a heartbeat, in %(time)s at most.", time=age(seconds))
    return sentence(
        "The worker has not answered for two heartbeats: it is frozen or cut off, or its version does not know the"
        " question."
    )


def forget() -> None:
    """Delete old questions and answers."""
    TaskStack.objects.using(alias()).filter(asked_at__lt=timezone.now() - KEPT).delete()
