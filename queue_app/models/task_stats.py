"""Statistics of task types by the hour, and of users and concurrency keys by the day."""

from enum import StrEnum
from typing import ClassVar

from django.db import models
from django.db.models import Q

from queue_app.models.columns import TYPE_LENGTH, choices_of


class StatsKind(StrEnum):
    """What a row of statistics is about."""

    TYPE = "type"
    USER = "user"
    KEY = "key"


class TaskStats(models.Model):
    """Ended tasks of one type in one hour, or of one user or concurrency key on one day (UTC).

    Times are histograms (``core.histogram``), so that rows can be added.
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
