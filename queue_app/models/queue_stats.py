"""Statistics of queues: one row per queue and minute."""

from typing import ClassVar

from django.db import models

from queue_app.models.columns import NAME_LENGTH


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
