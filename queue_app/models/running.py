"""Progress, log lines and steps of attempts, in tables of their own, like parameters and results.

Progress and log lines are written without waiting for the disk: losing a line with the server does no harm. Steps are
written durably.
"""

from typing import ClassVar

from django.db import models

from queue_app.core.steps import STEP_NAME_LENGTH, StepKind
from queue_app.models.columns import NAME_LENGTH, choices_of
from queue_app.models.task import Task


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
