"""What attempts say while they run: how far they are, and what they logged.

Beside the hot row, like parameters and results, and written without waiting for the disk: a
line that is lost with the server harms nobody.
"""

from __future__ import annotations

from typing import ClassVar

from django.db import models

from queue_app.models.task import Task


class TaskProgress(models.Model):
    """How far a task has come; written while an attempt runs, at most about twice a second."""

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
    """The last lines that one attempt logged."""

    task = models.ForeignKey(Task, on_delete=models.CASCADE, db_constraint=False, related_name="logs", db_index=False)
    attempt = models.IntegerField()
    lines = models.TextField()  # separated by line feeds; none has one in it
    dropped = models.IntegerField(default=0)  # earlier lines that were left out
    updated_at = models.DateTimeField()

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["task", "attempt"], name="taskqueue_log_once"),
        ]

    def __str__(self) -> str:
        return f"log of {self.task_id}, attempt {self.attempt}"
