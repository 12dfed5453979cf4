"""What people and clients asked for: operations on many tasks, audit log, saved views, answered requests."""

from __future__ import annotations

from enum import StrEnum
from typing import ClassVar, Final

from django.db import models
from django.db.models import Q

from queue_app.core.options import KEY_LENGTH
from queue_app.models.fields import TYPE_LENGTH, USER_LENGTH, IdField, choices_of

# The audit log: what people changed in the admin, over the API and by commands, and what code did to workflows.

REASON_LENGTH = 200


class AuditEntry(models.Model):
    """One action of a person; it is never edited, and deleted after its retention."""

    id = IdField()
    at = models.DateTimeField()
    by = models.CharField(max_length=USER_LENGTH, blank=True, default="")  # user of the application, or of the shell
    via = models.CharField(max_length=10, choices=choices_of(("admin", "api", "command", "code")))
    action = models.CharField(max_length=50)  # such as pause or task.cancel
    target = models.CharField(max_length=50)  # kind of object, such as queue
    target_id = models.CharField(max_length=TYPE_LENGTH, blank=True, default="")  # empty: several objects
    count = models.PositiveIntegerField(default=1)  # number of changed objects
    before = models.JSONField(default=dict, blank=True)
    after = models.JSONField(default=dict, blank=True)
    reason = models.CharField(max_length=REASON_LENGTH, blank=True, default="")

    class Meta:
        verbose_name = "audit entry"
        verbose_name_plural = "audit log"
        ordering: ClassVar = ["-id"]
        indexes: ClassVar = [
            # history on the pages of queues, workers and policies
            models.Index(fields=["target", "target_id", "-id"], name="taskqueue_audit_target")
        ]

    def __str__(self) -> str:
        return f"{self.action} {self.target} {self.target_id}".strip()


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

    TASKS = "tasks"
    DEAD_LETTERS = "dead_letters"  # replays only
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
    arguments = models.JSONField(default=dict)  # such as {"priority": "high", "order": "newest"}
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
    result = models.JSONField(null=True, blank=True)  # of a simulation: its answer, or when its process was alive;
    # of others: the ids of the first changed tasks
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


# Saved filters and searches of lists in the admin.

MAX_QUERY = 1000


class SavedView(models.Model):
    """The query string of a list's URL; private, or shared with all staff."""

    id = IdField()
    name = models.CharField(max_length=60)
    of = models.CharField(max_length=20, choices=[("task", "tasks"), ("deadletter", "dead letters")])
    query = models.CharField(max_length=MAX_QUERY)
    user = models.CharField(max_length=USER_LENGTH)
    shared = models.BooleanField(default=False)

    class Meta:
        ordering: ClassVar = ["name"]
        constraints: ClassVar = [models.UniqueConstraint(fields=["user", "of", "name"], name="taskqueue_view_once")]

    def __str__(self) -> str:
        return self.name


# Answers to requests that carried an idempotency key, so that a repetition changes nothing.


class IdempotentRequest(models.Model):
    """One answer; its transaction made what the request asked for. It is deleted with the keys of tasks."""

    id = IdField()
    user = models.CharField(max_length=USER_LENGTH)
    key = models.CharField(max_length=KEY_LENGTH)
    digest = models.CharField(max_length=64)  # of method, address and body
    status = models.PositiveSmallIntegerField(default=0)
    answer = models.TextField(blank=True, default="")
    location = models.TextField(blank=True, default="")
    created_at = models.DateTimeField()

    class Meta:
        default_permissions: ClassVar = ()
        constraints: ClassVar = [models.UniqueConstraint(fields=["user", "key"], name="taskqueue_request_key")]
        indexes: ClassVar = [
            models.Index(fields=["created_at"], name="taskqueue_requests_old")  # services.upkeep.maintenance
        ]

    def __str__(self) -> str:
        return f"{self.user}: {self.key}"
