"""The history of adaptive limits: their value, what was seen and why, one row a minute and one for each change."""

from __future__ import annotations

from typing import ClassVar

from django.db import models

from queue_app.models.columns import TYPE_LENGTH


class LimitStep(models.Model):
    """The value of an adaptive limit from ``at`` to ``stepped_at``; the newest row holds the state of the steps."""

    gate = models.CharField(max_length=TYPE_LENGTH + 2)  # as core.limit_values.gate_of
    at = models.DateTimeField()
    stepped_at = models.DateTimeField()
    value = models.PositiveIntegerField()
    running = models.PositiveIntegerField(default=0)
    run_p50 = models.FloatField(null=True, blank=True)  # seconds; null: too few tasks ended
    ratio = models.FloatField(null=True, blank=True)  # run times / their baseline
    failures = models.PositiveIntegerField(default=0)  # failed attempts
    cause = models.CharField(max_length=10)  # as core.adaptive.AdaptiveState
    reason = models.CharField(max_length=300)
    since = models.DateTimeField()  # since when that is the cause
    state = models.JSONField(default=dict)

    objects: ClassVar[models.Manager[LimitStep]] = models.Manager()

    class Meta:
        indexes: ClassVar = [
            # the newest row of a limit, its chart, and the purge
            models.Index(fields=["gate", "-at"], name="taskqueue_limit_steps"),
        ]

    def __str__(self) -> str:
        return f"{self.gate} {self.value}"
