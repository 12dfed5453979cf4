"""A worker process and its last heartbeat; what running attempts store: progress, log lines, steps."""

from collections.abc import Iterable
from enum import StrEnum
from typing import ClassVar, Final

from django.db import models
from django.db.models import Q

from queue_app.core.steps import STEP_NAME_LENGTH, StepKind
from queue_app.models.fields import NAME_LENGTH, USER_LENGTH, IdField, NamesField, choices_of
from queue_app.models.task import Task


class WorkerStatus(StrEnum):
    """The state of a worker."""

    ACTIVE = "active"
    DRAINING = "draining"
    STOPPED = "stopped"
    DEAD = "dead"


LIVING: Final = (WorkerStatus.ACTIVE, WorkerStatus.DRAINING)


class Worker(models.Model):
    """One worker process, from its registration until its retention after its end."""

    id = IdField()
    name = models.CharField(max_length=200)
    status = models.CharField(max_length=10, choices=choices_of(WorkerStatus))
    queues = NamesField(models.CharField(max_length=NAME_LENGTH), default=list, blank=True)  # empty: all
    capabilities = NamesField(models.CharField(max_length=NAME_LENGTH), default=list, blank=True)
    task_types = NamesField(models.TextField(), default=list, blank=True)
    concurrency = models.PositiveIntegerField()
    profile = models.CharField(max_length=40)  # name in the index for its queues, capabilities and task types
    host = models.CharField(max_length=255)
    pid = models.PositiveIntegerField()
    process_identity = models.CharField(max_length=255)  # boot id, pid namespace, pid, start time
    version = models.CharField(max_length=50, blank=True, default="")
    started_at = models.DateTimeField()
    last_heartbeat_at = models.DateTimeField()
    heartbeat_seconds = models.FloatField()
    stopped_at = models.DateTimeField(null=True, blank=True)
    tasks_done = models.BigIntegerField(default=0)
    # slots for which its last claim brought no task, as of its last heartbeat; the watchdog asks why (sql.watchdog)
    free_slots = models.PositiveSmallIntegerField(default=0, db_default=0)
    # as of its last heartbeat: processor time since the one before in percent of one core, resident memory
    cpu_percent = models.FloatField(null=True, blank=True)
    memory_bytes = models.BigIntegerField(null=True, blank=True)
    supervisor_pid = models.PositiveIntegerField(null=True, blank=True)
    token_id = models.UUIDField(null=True, blank=True)  # token of a worker that works over HTTP
    # run of PostgreSQL in which it last named the grants that it holds (grant_again); NULL: of a former version
    answered_run = models.CharField(max_length=64, null=True, blank=True)  # noqa: DJ001
    # staff asked the worker to finish its running tasks and exit
    drain_requested_at = models.DateTimeField(null=True, blank=True)
    drain_requested_by = models.CharField(max_length=USER_LENGTH, blank=True, default="", db_default="")

    class Meta:
        ordering: ClassVar = ["-id"]
        indexes: ClassVar = [
            # services.repair.reap and the list of live workers
            models.Index(
                fields=["last_heartbeat_at"],
                condition=Q(status__in=["active", "draining"]),
                name="taskqueue_live_workers",
            )
        ]
        constraints: ClassVar = [
            models.CheckConstraint(condition=Q(status__in=list(WorkerStatus)), name="taskqueue_worker_status"),
            models.CheckConstraint(condition=Q(concurrency__gte=1), name="taskqueue_worker_slots"),
        ]
        permissions: ClassVar = [("drain_worker", "Can ask workers to drain")]

    def __str__(self) -> str:
        return self.name

    def serves(self, queue: str) -> bool:
        """Return whether the worker claims from a queue."""
        return not self.queues or queue in self.queues

    def can_run(self, task_type: str, capabilities: Iterable[str]) -> bool:
        """Return whether the worker knows a task type and offers all of the capabilities."""
        return task_type in self.task_types and set(capabilities) <= set(self.capabilities)


# Progress, log lines and steps of attempts, in tables of their own, like parameters and results.
#
# Progress and log lines are written without waiting for the disk: losing a line with the server does no harm. Steps are
# written durably.


class TaskProgress(models.Model):
    """Progress of a task, written at most about twice a second while an attempt runs."""

    task = models.OneToOneField(
        Task, on_delete=models.CASCADE, primary_key=True, db_constraint=False, related_name="progress"
    )
    attempt = models.IntegerField()
    fraction = models.FloatField()  # from 0 to 1
    message = models.TextField(blank=True, default="")
    updated_at = models.DateTimeField()

    def __str__(self) -> str:
        return f"progress of {self.task_id}: {self.fraction:.0%}"


class TaskLog(models.Model):
    """The last log lines of one attempt."""

    task = models.ForeignKey(Task, on_delete=models.CASCADE, db_constraint=False, related_name="logs", db_index=False)
    attempt = models.IntegerField()
    lines = models.TextField()  # separated by line feeds
    dropped = models.IntegerField(default=0)  # number of earlier lines that are not stored
    updated_at = models.DateTimeField()

    class Meta:
        constraints: ClassVar = [models.UniqueConstraint(fields=["task", "attempt"], name="taskqueue_log_once")]

    def __str__(self) -> str:
        return f"log of {self.task_id}, attempt {self.attempt}"


class TaskStack(models.Model):
    """A question of staff for the stack of a running attempt, and the answer of its worker; kept for minutes."""

    task = models.OneToOneField(
        Task, on_delete=models.CASCADE, primary_key=True, db_constraint=False, related_name="stack"
    )
    attempt = models.IntegerField()
    worker_id = models.UUIDField()
    asked_at = models.DateTimeField()
    answered_at = models.DateTimeField(null=True, blank=True)
    text = models.TextField(blank=True, default="", db_default="")

    class Meta:
        default_permissions = ()
        permissions: ClassVar = [("view_stack", "Can see the stacks of running tasks")]

    def __str__(self) -> str:
        return f"stack of {self.task_id}, attempt {self.attempt}"


class StepResult(models.Model):
    """A step of a task: its result, which later attempts get instead of running it again."""

    task = models.ForeignKey(Task, on_delete=models.CASCADE, db_constraint=False, related_name="steps", db_index=False)
    name = models.CharField(max_length=STEP_NAME_LENGTH)
    position = models.IntegerField()  # 1 for the first step
    kind = models.CharField(max_length=10, choices=choices_of(StepKind))
    attempt = models.IntegerField()  # that stored it
    value = models.JSONField(null=True, blank=True)
    signal = models.CharField(max_length=NAME_LENGTH, blank=True, default="")
    until = models.DateTimeField(null=True, blank=True)  # end of a sleep, or of the time to wait for the signal
    schema = models.JSONField(null=True, blank=True)  # fields of the signal's payload; null: any payload
    stored_at = models.DateTimeField()
    done_at = models.DateTimeField(null=True, blank=True)  # null: the task waits for the signal

    class Meta:
        constraints: ClassVar = [models.UniqueConstraint(fields=["task", "name"], name="taskqueue_step_once")]

    def __str__(self) -> str:
        return f"step {self.name} of {self.task_id}"
