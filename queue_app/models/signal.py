"""A message to one task, or to any one task of a workflow; a step of the task waits for it."""

from typing import ClassVar

from django.db import models
from django.db.models import Q

from queue_app.models.columns import NAME_LENGTH, USER_LENGTH
from queue_app.models.limit_columns import indexed_if_set
from queue_app.models.task import Task


class Signal(models.Model):
    """One signal; one step takes it, the oldest first. Ids rise in the order in which a task's signals arrived."""

    task = models.ForeignKey(
        Task, on_delete=models.CASCADE, null=True, db_constraint=False, related_name="signals", db_index=False
    )
    workflow_id = models.UUIDField(null=True, blank=True)  # instead of the task
    name = models.CharField(max_length=NAME_LENGTH)
    payload = models.JSONField(null=True, blank=True)
    sent_at = models.DateTimeField()
    sent_by = models.CharField(max_length=USER_LENGTH, blank=True, default="")
    taken_at = models.DateTimeField(null=True, blank=True)  # null: no step has taken it

    class Meta:
        permissions: ClassVar = [("send_signal", "Can send signals to tasks, such as approvals")]
        indexes: ClassVar = [
            models.Index(fields=["task", "id"], name="taskqueue_signals"),  # the signals of a task
            # services.lifecycle.steps: signals that a step may take
            models.Index(fields=["task", "name", "id"], condition=Q(taken_at__isnull=True), name="taskqueue_untaken"),
            indexed_if_set("workflow_id", "id", name="taskqueue_flow_signals"),
        ]

    def __str__(self) -> str:
        return f"signal {self.name} to {self.workflow_id or self.task_id}"
