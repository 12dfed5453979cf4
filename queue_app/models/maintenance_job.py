"""Upkeep jobs and their last runs: one row per job."""

from typing import Any, ClassVar

from django.db import models


class MaintenanceJob(models.Model):
    """The last run of a job, by Celery or by the scheduler."""

    name = models.CharField(primary_key=True, max_length=50)
    started_at = models.DateTimeField(null=True, blank=True)  # start of the last run
    succeeded_at = models.DateTimeField(null=True, blank=True)  # end of the last run that succeeded
    seconds = models.FloatField(default=0)  # duration of the last successful run
    done = models.BigIntegerField(default=0)  # rows or tasks that it handled
    error = models.TextField(blank=True, default="")  # error of the last run; empty after a success
    progress = models.JSONField(default=dict)  # position at which the next run continues

    class Meta:
        ordering: ClassVar = ["name"]

    def __str__(self) -> str:
        return self.name

    @classmethod
    def record(cls, database: str, name: str, **fields: Any) -> None:
        """Change the row of a job, or make it."""
        rows = cls.objects.using(database)
        if not rows.filter(name=name).update(**fields):
            rows.update_or_create(name=name, defaults=fields)
