"""Operations: actions on many tasks or dead letters that run in the background."""

from __future__ import annotations

from enum import StrEnum
from typing import ClassVar, Final

from django.db import models
from django.db.models import Q

from queue_app.models.audit_entry import REASON_LENGTH
from queue_app.models.columns import USER_LENGTH, choices_of
from queue_app.models.fields import IdField


class OperationKind(StrEnum):
    """What an operation does with each task."""

    CANCEL = "cancel"
    REPRIORITISE = "reprioritise"
    REPLAY = "replay"
    RETRY = "retry"
    RUN_NOW = "run_now"
    DELETE = "delete"
    REENCRYPT = "reencrypt"
    BACKFILL = "backfill"
    SIMULATE = "simulate"


#: Permission for starting an operation of each kind, and for managing other users' operations.
PERMISSIONS: Final = {
    OperationKind.CANCEL: "queue_app.cancel_task",
    OperationKind.REPRIORITISE: "queue_app.reprioritise_task",
    OperationKind.REPLAY: "queue_app.replay_deadletter",
    OperationKind.RETRY: "queue_app.retry_task",
    OperationKind.RUN_NOW: "queue_app.retry_task",
    OperationKind.DELETE: "queue_app.delete_task",
    OperationKind.REENCRYPT: "queue_app.view_encrypted",
    OperationKind.BACKFILL: "queue_app.run_schedule",
    OperationKind.SIMULATE: "queue_app.view_queuestats",
}


class OperationTarget(StrEnum):
    """What the operation's filter selects."""

    TASKS = "tasks"  # oldest first
    DEAD_LETTERS = "dead_letters"  # oldest first; replays only
    TICKS = "ticks"  # of one schedule, in order; backfills only
    POLICIES = "policies"  # none of them is changed; simulations only


class OperationState(StrEnum):
    """The state of an operation."""

    RUNNING = "running"
    DONE = "done"
    STOPPED = "stopped"  # the first replayed tasks failed again
    CANCELLED = "cancelled"  # changes made so far remain


class Operation(models.Model):
    """What to do with which tasks, how fast, and the progress so far; advanced by ``run_operations``."""

    id = IdField()
    kind = models.CharField(max_length=12, choices=choices_of(OperationKind))
    target = models.CharField(
        max_length=12,
        choices=choices_of(OperationTarget),
        default=OperationTarget.TASKS,
        db_default=OperationTarget.TASKS,
    )
    state = models.CharField(max_length=10, choices=choices_of(OperationState), default=OperationState.RUNNING)
    filter = models.JSONField(default=dict)  # TaskFilter or DeadLetterFilter of services, as JSON
    arguments = models.JSONField(default=dict)  # arguments of the kind, such as {"priority": "high"}
    rate = models.FloatField(null=True, blank=True)  # tasks per second; null: as fast as possible
    limit = models.PositiveIntegerField(null=True, blank=True)  # maximum number of rows; null: all that match
    stop_after_failures = models.PositiveSmallIntegerField(default=0, db_default=0)  # replays only; 0: never
    by = models.CharField(max_length=USER_LENGTH, blank=True, default="")
    reason = models.CharField(max_length=REASON_LENGTH, blank=True, default="")
    total = models.PositiveIntegerField()  # matching rows at the start, at most the limit
    changed = models.PositiveIntegerField(default=0)  # rows that were changed
    skipped = models.PositiveIntegerField(default=0)  # rows that ended, or were claimed, purged or replayed, meanwhile
    failed_again = models.PositiveIntegerField(
        default=0, db_default=0
    )  # replayed tasks that failed again by the end of the operation
    created_at = models.DateTimeField()  # later rows are not touched
    finished_at = models.DateTimeField(null=True, blank=True)
    ended_by = models.CharField(max_length=USER_LENGTH, blank=True, default="")  # user who cancelled it
    cleared_at = models.DateTimeField(null=True, blank=True)  # time when one of the first tasks did not fail again
    paced_at = models.DateTimeField(null=True, blank=True)  # time up to which the rate is used up
    result = models.JSONField(null=True, blank=True)  # simulations only; while one runs, when its process was alive
    after_id = models.UUIDField(null=True, blank=True)  # last row so far,
    after_died_at = models.DateTimeField(null=True, blank=True)  # and its died_at, for dead letters

    objects: ClassVar[models.Manager[Operation]] = models.Manager()

    class Meta:
        ordering: ClassVar = ["-id"]
        indexes: ClassVar = [
            # run_operations, every second or so
            models.Index(fields=["id"], condition=Q(state=OperationState.RUNNING), name="taskqueue_operations_run")
        ]
        constraints: ClassVar = [
            models.CheckConstraint(condition=Q(kind__in=list(OperationKind)), name="taskqueue_operation_kind"),
            models.CheckConstraint(condition=Q(state__in=list(OperationState)), name="taskqueue_operation_state"),
            models.CheckConstraint(
                condition=Q(target=OperationTarget.TASKS)
                & ~Q(kind__in=[OperationKind.BACKFILL, OperationKind.SIMULATE])
                | Q(target=OperationTarget.DEAD_LETTERS, kind=OperationKind.REPLAY)
                | Q(target=OperationTarget.TICKS, kind=OperationKind.BACKFILL)
                | Q(target=OperationTarget.POLICIES, kind=OperationKind.SIMULATE),
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
        many = "" if self.kind == OperationKind.SIMULATE else f" {self.total} {self.get_target_display()}"
        return f"{self.get_kind_display()}{many}: {self.get_state_display()}"

    @property
    def remaining(self) -> int:
        """The number of rows that remain, also of an operation that ended early."""
        return 0 if self.state == OperationState.DONE else max(0, self.total - self.changed - self.skipped)

    @property
    def is_waiting_for_the_first(self) -> bool:
        """Whether it waits for the first replayed tasks: it continues when one of them has completed."""
        return (
            self.state == OperationState.RUNNING
            and self.cleared_at is None
            and 0 < self.stop_after_failures <= self.changed
        )
