"""An action on many tasks or dead letters, which goes on after whoever asked for it has left."""

from __future__ import annotations

from enum import StrEnum
from typing import ClassVar, Final

from django.db import models
from django.db.models import Q

from queue_app.models.audit_entry import REASON_LENGTH
from queue_app.models.columns import USER_LENGTH
from queue_app.models.fields import IdField


class OperationKind(StrEnum):
    """What is done to each task."""

    CANCEL = "cancel"
    REPRIORITISE = "reprioritise"
    REPLAY = "replay"
    RETRY = "retry"
    RUN_NOW = "run_now"


#: What whoever begins one of a kind must be allowed to do, and may then do to those of others too.
PERMISSIONS: Final = {
    OperationKind.CANCEL: "queue_app.cancel_task",
    OperationKind.REPRIORITISE: "queue_app.reprioritise_task",
    OperationKind.REPLAY: "queue_app.replay_deadletter",
    OperationKind.RETRY: "queue_app.retry_task",
    OperationKind.RUN_NOW: "queue_app.retry_task",
}


class OperationTarget(StrEnum):
    """What its filter is one of, and in whose order it goes through them."""

    TASKS = "tasks"  # oldest first
    DEAD_LETTERS = "dead_letters"  # oldest deaths first; replays only


class OperationState(StrEnum):
    """Where an operation stands."""

    RUNNING = "running"
    DONE = "done"
    STOPPED = "stopped"  # the first tasks that it replayed failed again
    CANCELLED = "cancelled"  # by somebody; what it has changed stays changed


class Operation(models.Model):
    """What shall be done to which tasks, how fast, and how far it has come; advanced by ``run_operations``."""

    id = IdField()
    kind = models.CharField(max_length=12, choices=[(kind.value, kind.value) for kind in OperationKind])
    target = models.CharField(
        max_length=12,
        choices=[(target.value, target.value.replace("_", " ")) for target in OperationTarget],
        default=OperationTarget.TASKS,
        db_default=OperationTarget.TASKS,
    )
    state = models.CharField(
        max_length=10, choices=[(state.value, state.value) for state in OperationState], default=OperationState.RUNNING
    )
    filter = models.JSONField(default=dict)  # TaskFilter or DeadLetterFilter of services, as JSON
    arguments = models.JSONField(default=dict)  # of the kind: {"priority": "high"}
    rate = models.FloatField(null=True, blank=True)  # per second; null: as fast as it goes
    limit = models.PositiveIntegerField(null=True, blank=True)  # looks at no more; null: all that match
    stop_after_failures = models.PositiveSmallIntegerField(default=0, db_default=0)  # of a replay; 0: never
    by = models.CharField(max_length=USER_LENGTH, blank=True, default="")
    reason = models.CharField(max_length=REASON_LENGTH, blank=True, default="")
    total = models.PositiveIntegerField()  # what it applied to when it was asked for, at most its limit
    changed = models.PositiveIntegerField(default=0)  # what it was done to
    skipped = models.PositiveIntegerField(default=0)  # of the total: ended, claimed, purged or replayed meanwhile
    failed_again = models.PositiveIntegerField(default=0, db_default=0)  # of what it replayed, when it ended
    created_at = models.DateTimeField()  # what is stored, or dies, later is left alone
    finished_at = models.DateTimeField(null=True, blank=True)
    ended_by = models.CharField(max_length=USER_LENGTH, blank=True, default="")  # who cancelled it
    cleared_at = models.DateTimeField(null=True, blank=True)  # one of the first ones did not fail again
    paced_at = models.DateTimeField(null=True, blank=True)  # up to here the rate has been used
    after_id = models.UUIDField(null=True, blank=True)  # the last one that was looked at,
    after_died_at = models.DateTimeField(null=True, blank=True)  # and of a dead letter when it died

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
                condition=Q(target=OperationTarget.TASKS)
                | Q(target=OperationTarget.DEAD_LETTERS, kind=OperationKind.REPLAY),
                name="taskqueue_operation_target",
            ),
            models.CheckConstraint(
                condition=Q(rate__isnull=True, paced_at__isnull=True) | Q(rate__gt=0, paced_at__isnull=False),
                name="taskqueue_operation_rate",
            ),
            models.CheckConstraint(
                condition=Q(state=OperationState.RUNNING, finished_at__isnull=True)
                | Q(
                    state__in=[OperationState.CANCELLED, OperationState.DONE, OperationState.STOPPED],
                    finished_at__isnull=False,
                ),
                name="taskqueue_operation_finished",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.kind} {self.total} {self.target.replace('_', ' ')}: {self.state}"

    @property
    def remaining(self) -> int:
        """How many are still to be looked at."""
        return max(0, self.total - self.changed - self.skipped) if self.state == OperationState.RUNNING else 0

    @property
    def is_waiting_for_the_first(self) -> bool:
        """Whether it goes on only once one of the first tasks that it replayed has ended well."""
        return (
            self.state == OperationState.RUNNING
            and self.cleared_at is None
            and 0 < self.stop_after_failures <= self.changed
        )
