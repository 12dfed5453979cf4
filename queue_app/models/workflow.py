"""Workflows: tasks that wait for tasks.

A task that waits for others is ``blocked``. What it waits for is rows here; how far it is, counters. Nodes, edges and
counters are written by the hundred thousand, so none has a foreign key that PostgreSQL would check.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, ClassVar, Final

from django.db import models
from django.db.models import Q, Value
from django.utils.translation import gettext_lazy as _lazy

from queue_app.models.fields import NAME_LENGTH, USER_LENGTH, IdField, JSONField, choices_of
from queue_app.models.limits import check_if_set, indexed_if_set, optional_count, text
from queue_app.models.operation import REASON_LENGTH
from queue_app.models.task import Task

WORKFLOW_NAME_LENGTH: Final = 200


class WorkflowState(StrEnum):
    """What became of a workflow as a whole."""

    RUNNING = "running"
    COMPENSATING = "compensating"  # it will not complete; what had completed is being undone
    COMPLETED = "completed"
    FAILED = "failed"  # a task, or a compensation, did not complete
    CANCELLED = "cancelled"
    COMPENSATED = "compensated"  # it did not complete, and all that had completed was undone, except for its gaps


#: State that readers never see: its tasks are being deleted.
DELETING: Final = "deleting"
#: What a workflow that has not ended may be doing -> the condition on its columns.
STANDINGS: Final[dict[str, dict[str, Any]]] = {
    "open": {"finished_at__isnull": True},
    "held": {"finished_at__isnull": True, "held_at__isnull": False},
    "paused": {"finished_at__isnull": True, "paused": True},
}


class OnFailure(StrEnum):
    """What happens to the rest of a workflow when one of its tasks ends without success."""

    HOLD = "hold"  # what waits for it keeps waiting, until staff retry or skip it
    CANCEL = "cancel"  # the rest is cancelled
    CONTINUE = "continue"  # what waits for it runs as if it had completed


class Condition(StrEnum):
    """What a task must do for the one that waits for it to run."""

    HOLD = "hold"  # complete; until then the other waits
    CANCEL = "cancel"  # complete; if it fails, the other is cancelled
    CONTINUE = "continue"  # end
    FAILURE = "failure"  # fail; if it completes, the other is cancelled


class Closed(StrEnum):
    """What a person decided about a compensation that did not complete."""

    SKIPPED = "skipped"  # the others go on; what it should have undone is a gap
    DONE = "done"  # a person undid it by hand
    STOPPED = "stopped"  # undoing was stopped as a whole


class Workflows(models.Manager["Workflow"]):
    """All workflows except the ones past their retention, which are being deleted."""

    def get_queryset(self) -> models.QuerySet[Workflow]:
        return super().get_queryset().exclude(state=DELETING)


class Workflow(models.Model):
    """Tasks that belong together, and wait for one another."""

    id = IdField()
    name = models.CharField(max_length=WORKFLOW_NAME_LENGTH)
    user = models.CharField(max_length=USER_LENGTH, default="", blank=True)
    state = models.CharField(max_length=12, choices=choices_of(WorkflowState), default=WorkflowState.RUNNING.value)
    on_failure = models.CharField(max_length=8, choices=choices_of(OnFailure), default=OnFailure.HOLD.value)
    nodes = models.IntegerField(default=0)  # number of its tasks, without compensations
    created_at = models.DateTimeField()
    deadline = models.DateTimeField(null=True, blank=True)  # cancelled, if it has not ended by then
    held_at = models.DateTimeField(null=True, blank=True)  # since when a failed task holds it
    finished_at = models.DateTimeField(null=True, blank=True)
    cancel_requested_at = models.DateTimeField(null=True, blank=True)
    cancel_reason = models.CharField(max_length=REASON_LENGTH, default="", blank=True)
    max_concurrent = optional_count(_lazy("Maximum number of its tasks that are queued or run at the same time."))
    paused = models.BooleanField(default=False)
    paused_reason = models.CharField(max_length=REASON_LENGTH, default="", blank=True)
    paused_by = models.CharField(max_length=USER_LENGTH, default="", blank=True)
    paused_at = models.DateTimeField(null=True, blank=True)
    #: The completed tasks that stay as they are, because what undoes them was given up: [{task_id, name, reason}].
    gaps = JSONField(default=list, db_default=Value([], JSONField()), blank=True)

    objects = Workflows()

    class Meta:
        ordering: ClassVar = ["-id"]
        indexes: ClassVar = [
            # workflows: open ones
            models.Index(fields=["id"], condition=Q(finished_at__isnull=True), name="taskqueue_open_workflows"),
            models.Index(
                fields=["deadline"],
                condition=Q(finished_at__isnull=True, deadline__isnull=False),
                name="taskqueue_flow_deadline",
            ),
            # sql.workflow_health: held ones, the longest first
            indexed_if_set("held_at", name="taskqueue_held_workflows"),
            # services.upkeep.maintenance
            indexed_if_set("finished_at", name="taskqueue_ended_workflows"),
            models.Index(fields=["user", "-id"], condition=~Q(user=""), name="taskqueue_flows_of_user"),
        ]
        constraints: ClassVar = [
            check_if_set("taskqueue_workflow_cap", max_concurrent__gte=1),
            models.CheckConstraint(
                condition=Q(finished_at__isnull=True, state__in=["running", "compensating"])
                | (Q(finished_at__isnull=False) & ~Q(state__in=["running", "compensating"])),
                name="taskqueue_workflow_end",
            ),
        ]
        permissions: ClassVar = [
            ("steer_workflow", "Can cancel, pause, resume, retry and reprioritise workflows"),
            ("stop_undoing_workflow", "Can stop what undoes workflows"),
        ]

    def __str__(self) -> str:
        return f"{self.name} {str(self.id)[-8:]}"


class TaskDependency(models.Model):
    """An edge: ``after`` waits for ``before``."""

    pk = models.CompositePrimaryKey("after", "before")
    after = models.ForeignKey(
        Task, on_delete=models.CASCADE, db_constraint=False, db_index=False, related_name="dependencies"
    )
    before = models.ForeignKey(
        Task, on_delete=models.CASCADE, db_constraint=False, db_index=False, related_name="dependants"
    )
    condition = models.CharField(max_length=8, choices=choices_of(Condition), default=Condition.HOLD.value)
    shard = models.SmallIntegerField(default=0)  # of the counter of ``after``
    met = models.BooleanField(default=False)  # counted although ``before`` had not completed

    class Meta:
        verbose_name_plural = "task dependencies"
        indexes: ClassVar = [
            # the finish of a task: what waits for it
            models.Index(fields=["before"], name="taskqueue_dependants"),
        ]

    def __str__(self) -> str:
        return f"{self.after_id} after {self.before_id}"


class DependencyCounter(models.Model):
    """A counter of what a blocked task waits for.

    A task that waits for one task has none: that task's end opens it. Up to a thousand tasks are counted in shard 0.
    More are counted in shards 1, 2 and so on, and shard 0 counts the shards, so that workers do not wait for one
    another to count. The counters go when the task is queued.
    """

    pk = models.CompositePrimaryKey("task", "shard")
    task = models.ForeignKey(
        Task, on_delete=models.CASCADE, db_constraint=False, db_index=False, related_name="counters"
    )
    shard = models.SmallIntegerField(default=0)
    remaining = models.IntegerField()

    def __str__(self) -> str:
        return f"{self.task_id} waits for {self.remaining}"


class WorkflowNode(models.Model):
    """What a few tasks of workflows have besides: a name of their own, a compensation, or the task that added them."""

    task = models.OneToOneField(
        Task, on_delete=models.CASCADE, primary_key=True, db_constraint=False, related_name="node"
    )
    name = models.CharField(max_length=NAME_LENGTH, default="", blank=True)
    compensation = JSONField(null=True, blank=True)  # the call that undoes it
    compensates = models.UUIDField(null=True, blank=True)  # the task that this one undoes
    added_by = models.UUIDField(null=True, blank=True)  # the task that added it while it ran
    closed = text(8, choices=choices_of(Closed))
    closed_reason = text(REASON_LENGTH)

    class Meta:
        indexes: ClassVar = [indexed_if_set("added_by", name="taskqueue_added_nodes")]

    def __str__(self) -> str:
        return self.name or f"node {self.task_id}"
