"""Rows for tests: every field has a usable value, and a test names those that matter to it.

A task that the engine must know is enqueued (``tests.support.engine.put``); these rows are for tests that read.
"""

# ruff: noqa: RUF012 - factory-boy reads the attributes of Meta
import uuid
from datetime import datetime, timedelta
from typing import Any

from django.contrib.auth.models import Permission, User
from django.utils import timezone
from factory import LazyAttribute, LazyFunction, RelatedFactory, Sequence, post_generation
from factory.django import DjangoModelFactory

from queue_app.core.priorities import Band
from queue_app.core.states import TERMINAL, Status
from queue_app.core.steps import listed
from queue_app.models import (
    DeadLetter,
    Limit,
    Queue,
    QueueStats,
    Schedule,
    StepResult,
    Task,
    TaskAttempt,
    TaskPayload,
    Worker,
)


def fields_of(status: str, at: datetime, *, worker_id: uuid.UUID | None = None) -> dict[str, Any]:
    """Return what a task's row must say in a status that the task reached at this time."""
    fields: dict[str, Any] = {"status": status}
    if status == Status.SCHEDULED:
        return fields | {"run_after": at}
    fields["queued_at"] = at
    if status == Status.EXECUTING:
        lease = {"started_at": at, "deadline": at + timedelta(minutes=10), "worker_id": worker_id or uuid.uuid4()}
        return fields | lease | {"attempt": 1}
    return fields | ({"finished_at": at, "deadline": None} if status in TERMINAL else {})


def move(task: Task, status: str, at: datetime | None = None, **fields: Any) -> Task:
    """Give the row of a task another status; return the task as it then is."""
    Task.objects.filter(pk=task.pk).update(**fields_of(status, at or timezone.now()) | fields)
    return Task.objects.get(pk=task.pk)


class PayloadFactory(DjangoModelFactory):
    """The payload of a task."""

    class Meta:
        model = TaskPayload


class TaskFactory(DjangoModelFactory):
    """A task in any status, with the times that the status needs; ``payload__parameters`` sets its parameters."""

    class Meta:
        model = Task
        skip_postgeneration_save = True

    task_type = "a"
    queue = "default"
    status = Status.QUEUED
    priority = Band.NORMAL
    created_at = LazyFunction(timezone.now)
    payload = RelatedFactory(PayloadFactory, factory_related_name="task")

    @classmethod
    def _adjust_kwargs(cls, **fields: Any) -> dict[str, Any]:
        return fields_of(fields["status"], fields["created_at"]) | fields


class AttemptFactory(DjangoModelFactory):
    """An attempt that failed."""

    class Meta:
        model = TaskAttempt

    attempt = 1
    started_at = LazyFunction(timezone.now)
    finished_at = LazyAttribute(lambda attempt: attempt.started_at)
    exception_class = "builtins.ValueError"


class DeadLetterFactory(DjangoModelFactory):
    """The dead letter of ``task``, or of a task that is not there."""

    class Meta:
        model = DeadLetter

    class Params:
        task = None

    task_id = LazyAttribute(lambda letter: letter.task.pk if letter.task else uuid.uuid4())
    task_type = LazyAttribute(lambda letter: letter.task.task_type if letter.task else "a")
    queue = LazyAttribute(lambda letter: letter.task.queue if letter.task else "default")
    priority = LazyAttribute(lambda letter: letter.task.priority if letter.task else Band.NORMAL)
    user = LazyAttribute(lambda letter: letter.task.user if letter.task else "")
    reason = "retries_exhausted"
    attempts = 1
    exception_class = "builtins.ValueError"
    message = "no luck"
    died_at = LazyFunction(timezone.now)
    expires_at = LazyAttribute(lambda letter: letter.died_at + timedelta(days=30))


class WorkerFactory(DjangoModelFactory):
    """A live worker."""

    class Meta:
        model = Worker

    name = Sequence(lambda number: f"worker-{number}")
    status = "active"
    task_types = ["a"]
    concurrency = 1
    profile = "p"
    host = "host-1"
    pid = 4242
    process_identity = "x"
    version = "0.1.0"
    started_at = LazyFunction(timezone.now)
    last_heartbeat_at = LazyFunction(timezone.now)
    heartbeat_seconds = 10.0


class QueueFactory(DjangoModelFactory):
    """A queue."""

    class Meta:
        model = Queue

    name = Sequence(lambda number: f"queue-{number}")


class QueueStatsFactory(DjangoModelFactory):
    """The snapshot of a queue at a minute."""

    class Meta:
        model = QueueStats

    queue = "default"
    taken_at = LazyFunction(timezone.now)


class LimitFactory(DjangoModelFactory):
    """A limit of a task type."""

    class Meta:
        model = Limit

    scope = "type"
    name = "shop.mail"


class ScheduleFactory(DjangoModelFactory):
    """A schedule of a task of the demo, which ticks every hour."""

    class Meta:
        model = Schedule

    name = Sequence(lambda number: f"schedule {number}")
    task_type = "taskqueue_project.demo.tasks.count_words"
    parameters = LazyFunction(lambda: {"document_id": 1})
    queue = "default"
    priority = 2
    every = 3600
    next_instant = LazyFunction(lambda: timezone.now() + timedelta(hours=1))
    due_at = LazyAttribute(lambda schedule: schedule.next_instant)


class StaffFactory(DjangoModelFactory):
    """A member of the staff; ``permissions`` are codenames of the queue's permissions."""

    class Meta:
        model = User
        skip_postgeneration_save = True

    username = Sequence(lambda number: f"staff-{number}")
    is_staff = True

    @post_generation
    def permissions(self, _create: bool, codenames: list[str] | None) -> None:
        """Give exactly these permissions."""
        found = Permission.objects.filter(content_type__app_label="queue_app", codename__in=codenames or ())
        assert len(found) == len(codenames or ())
        self.user_permissions.set(found)


def let_wait(task: Task, signal: str = "approved", *, schema: Any = None, **fields: Any) -> Task:
    """Let a task wait for a signal, as its first attempt does; ``fields`` are those of the step."""
    move(task, "executing")
    StepResult.objects.create(
        task=task, name=f"wait for {signal}", position=1, kind="signal", attempt=1, signal=signal,
        stored_at=timezone.now(), schema=schema and listed(schema), **fields,
    )  # fmt: skip
    Task.objects.filter(pk=task.pk).update(status="blocked", queued_at=None, run_after=fields.get("until"))
    return Task.objects.get(pk=task.pk)
