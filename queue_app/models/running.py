"""Progress and log lines of running attempts.

They have tables of their own, like parameters and results, and are written without waiting for
the disk: losing a line with the server does no harm.
"""

from typing import ClassVar

from django.db import models

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
