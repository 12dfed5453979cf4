"""An action on many tasks, which goes on after whoever asked for it has left."""

from __future__ import annotations

from enum import StrEnum
from typing import ClassVar

from django.db import models
from django.db.models import Q

from queue_app.core.ids import uuid7
from queue_app.models.replay_operation import REASON_LENGTH
from queue_app.models.task import USER_LENGTH


class OperationKind(StrEnum):
    """What is done to each task."""

    CANCEL = "cancel"
    REPRIORITISE = "reprioritise"
    REPLAY = "replay"
    RETRY = "retry"
    RUN_NOW = "run_now"


class OperationState(StrEnum):
    """Where an operation stands."""

    RUNNING = "running"
    DONE = "done"
    CANCELLED = "cancelled"  # by somebody; what it has changed stays changed


class Operation(models.Model):
    """What shall be done to which tasks, and how far it has come; advanced by ``run_operations``."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    kind = models.CharField(max_length=12, choices=[(kind.value, kind.value) for kind in OperationKind])
    state = models.CharField(
        max_length=10, choices=[(state.value, state.value) for state in OperationState], default=OperationState.RUNNING
    )
    filter = models.JSONField(default=dict)  # services.task_filter.TaskFilter, as JSON
    arguments = models.JSONField(default=dict)  # of the kind: {"priority": "high"}
    by = models.CharField(max_length=USER_LENGTH, blank=True, default="")
    reason = models.CharField(max_length=REASON_LENGTH, blank=True, default="")
    total = models.PositiveIntegerField()  # tasks that it applied to when it was asked for
    changed = models.PositiveIntegerField(default=0)  # tasks that it was done to
    skipped = models.PositiveIntegerField(default=0)  # of the total: ended, claimed or purged meanwhile
    created_at = models.DateTimeField()  # tasks that are stored later are left alone
    finished_at = models.DateTimeField(null=True, blank=True)
    ended_by = models.CharField(max_length=USER_LENGTH, blank=True, default="")  # who cancelled it
    after_id = models.UUIDField(null=True, blank=True)  # the last task that was looked at

    objects: ClassVar[models.Manager[Operation]] = models.Manager()

    class Meta:
        ordering: ClassVar = ["-id"]
        indexes: ClassVar = [
            # run_operations, every second or so
            models.Index(fields=["id"], condition=Q(state=OperationState.RUNNING), name="taskqueue_operations_run"),
        ]
        constraints: ClassVar = [
            models.CheckConstraint(condition=Q(kind__in=list(OperationKind)), name="taskqueue_operation_kind"),
            models.CheckConstraint(condition=Q(state__in=list(OperationState)), name="taskqueue_operation_state"),
            models.CheckConstraint(
                condition=Q(state=OperationState.RUNNING, finished_at__isnull=True)
                | Q(state__in=[OperationState.CANCELLED, OperationState.DONE], finished_at__isnull=False),
                name="taskqueue_operation_finished",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.kind} {self.total} tasks: {self.state}"

    @property
    def remaining(self) -> int:
        """How many are still to be looked at."""
        return max(0, self.total - self.changed - self.skipped) if self.state == OperationState.RUNNING else 0
