"""The jobs of upkeep, and when each was done last: one row a job."""

from __future__ import annotations

from typing import ClassVar

from django.db import models


class MaintenanceJob(models.Model):
    """When a job ran, whoever ran it: Celery, or the scheduler that saw it overdue."""

    name = models.CharField(primary_key=True, max_length=50)
    started_at = models.DateTimeField(null=True, blank=True)  # of the last run
    succeeded_at = models.DateTimeField(null=True, blank=True)  # end of the last run that succeeded
    seconds = models.FloatField(default=0)  # how long that took
    done = models.BigIntegerField(default=0)  # rows or tasks that it dealt with
    error = models.TextField(blank=True, default="")  # of the last run; empty when it succeeded
    progress = models.JSONField(default=dict)  # how far the job has come, for the next run to go on from

    class Meta:
        ordering: ClassVar = ["name"]

    def __str__(self) -> str:
        return self.name
