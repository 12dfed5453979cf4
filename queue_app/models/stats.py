"""Statistics by queue, task type, user and key, and the last runs of upkeep jobs."""

from enum import StrEnum
from typing import Any, ClassVar

from django.db import models
from django.db.models import Q

from queue_app.models.fields import NAME_LENGTH, TYPE_LENGTH, choices_of

# Statistics of queues: one row per queue and minute.


class QueueStats(models.Model):
    """A snapshot of one queue, taken every minute."""

    queue = models.CharField(max_length=NAME_LENGTH)
    taken_at = models.DateTimeField()
    depth = models.JSONField(default=dict)  # {band name: queued tasks}
    scheduled = models.PositiveIntegerField(default=0)
    active = models.PositiveIntegerField(default=0)
    max_concurrent = models.PositiveIntegerField(null=True, blank=True)
    oldest_seconds = models.FloatField(null=True, blank=True)  # age of the oldest queued task
    enqueued = models.PositiveIntegerField(default=0)  # since the last snapshot
    completed = models.PositiveIntegerField(default=0)
    failed = models.PositiveIntegerField(default=0)
    # percentiles in seconds, of attempts that ended since the last snapshot; null: none
    wait_p50 = models.FloatField(null=True, blank=True)
    wait_p95 = models.FloatField(null=True, blank=True)
    wait_p99 = models.FloatField(null=True, blank=True)
    run_p50 = models.FloatField(null=True, blank=True)
    run_p95 = models.FloatField(null=True, blank=True)
    run_p99 = models.FloatField(null=True, blank=True)

    class Meta:
        ordering: ClassVar = ["-taken_at", "queue"]
        verbose_name = "queue snapshot"
        constraints: ClassVar = [
            # one snapshot per queue and minute; also serves the charts
            models.UniqueConstraint(fields=["queue", "taken_at"], name="taskqueue_stats_once")
        ]

    def __str__(self) -> str:
        return f"{self.queue} at {self.taken_at:%Y-%m-%d %H:%M}"


class StatsKind(StrEnum):
    """What a row of statistics is about."""

    TYPE = "type"
    USER = "user"
    KEY = "key"


class TaskStats(models.Model):
    """Ended tasks of one type in one hour, or of one user or concurrency key on one day (UTC).

    Times are histograms (``core.counters``), so that rows can be added.
    """

    kind = models.CharField(max_length=4, choices=choices_of(StatsKind))
    name = models.CharField(max_length=TYPE_LENGTH)
    since = models.DateTimeField()  # begin of the hour or day
    completed = models.BigIntegerField(default=0)
    failed = models.BigIntegerField(default=0)  # failed for good, dead letters included
    other = models.BigIntegerField(default=0)  # cancelled, expired
    failures = models.BigIntegerField(default=0)  # failed attempts of the ended tasks
    last_at = models.DateTimeField()  # end of the last of them
    waits = models.JSONField(default=dict)  # bucket -> tasks that waited so long before their last attempt
    runs = models.JSONField(default=dict)  # bucket -> tasks whose last attempt ran so long
    versions = models.JSONField(default=dict)  # version of the worker -> tasks

    class Meta:
        ordering: ClassVar = ["-since", "name"]
        verbose_name = "task type"
        verbose_name_plural = "task types"
        indexes: ClassVar = [
            # services.upkeep.task_stats: all names of a kind in a period; services.upkeep: purge
            models.Index(fields=["kind", "since"], name="taskqueue_task_stats_since")
        ]
        constraints: ClassVar = [
            # one row per name and period; also serves the page of one name
            models.UniqueConstraint(fields=["kind", "name", "since"], name="taskqueue_task_stats_once"),
            models.CheckConstraint(
                condition=Q(kind__in=[each.value for each in StatsKind]), name="taskqueue_task_stats_kind"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.name} since {self.since:%Y-%m-%d %H:%M}"


# Upkeep jobs and their last runs: one row per job.


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
