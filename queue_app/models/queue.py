"""A queue and its limits, which staff edit; the index carries a copy for the claim."""

from __future__ import annotations

from typing import ClassVar

from django.core.validators import MaxValueValidator, MinValueValidator, RegexValidator
from django.db import models
from django.db.models import Q

from queue_app.models.task import NAME_LENGTH

#: Names become parts of Redis keys, so neither braces nor separators nor control characters pass.
NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9_.\-]*\Z"


class Queue(models.Model):
    """A named line of tasks with limits of its own."""

    name = models.CharField(
        primary_key=True,
        max_length=NAME_LENGTH,
        validators=[
            RegexValidator(
                NAME_PATTERN, "Use letters, digits, dots, dashes and underscores; begin with a letter or digit."
            )
        ],
    )
    description = models.TextField(blank=True, default="")
    max_concurrent = models.PositiveIntegerField(
        null=True,
        blank=True,
        validators=[MinValueValidator(1)],
        help_text="How many of its tasks may run at the same time, over all workers. Empty: no limit.",
    )
    max_retries = models.PositiveSmallIntegerField(
        null=True,
        blank=True,
        validators=[MaxValueValidator(100)],
        help_text="Retries of its tasks, where the task does not say. Empty: by the policy of the band.",
    )
    timeout_seconds = models.FloatField(
        null=True,
        blank=True,
        validators=[MinValueValidator(0.001)],
        help_text="How long one attempt may take, where the task does not say. Empty: by the policy of the band.",
    )
    stale_after_seconds = models.FloatField(
        null=True,
        blank=True,
        validators=[MinValueValidator(1)],
        help_text="Tasks that have been queued for so long may be given up as expired. Empty: never.",
    )
    expire_eagerly = models.BooleanField(
        default=False, db_default=False, help_text="Give stale tasks up every minute, not only when room is needed."
    )
    paused = models.BooleanField(default=False, help_text="A paused queue starts nothing new; what runs finishes.")
    paused_reason = models.CharField(max_length=200, blank=True, default="")
    paused_by = models.CharField(max_length=150, blank=True, default="")
    paused_at = models.DateTimeField(null=True, blank=True)
    created_at = models.DateTimeField(auto_now_add=True)
    updated_at = models.DateTimeField(auto_now=True)

    class Meta:
        ordering: ClassVar = ["name"]
        constraints: ClassVar = [
            models.CheckConstraint(
                condition=Q(max_concurrent__isnull=True) | Q(max_concurrent__gte=1), name="taskqueue_queue_cap"
            ),
            models.CheckConstraint(
                condition=Q(timeout_seconds__isnull=True) | Q(timeout_seconds__gt=0), name="taskqueue_queue_timeout"
            ),
            models.CheckConstraint(
                condition=Q(stale_after_seconds__isnull=True) | Q(stale_after_seconds__gt=0),
                name="taskqueue_queue_stale",
            ),
            models.CheckConstraint(
                condition=Q(expire_eagerly=False) | Q(stale_after_seconds__isnull=False),
                name="taskqueue_queue_expiry",
                violation_error_message="Say after how many seconds tasks are stale, or do not expire them eagerly.",
            ),
            models.CheckConstraint(
                condition=Q(paused=False) | Q(paused_at__isnull=False), name="taskqueue_queue_paused_time"
            ),
        ]
        permissions: ClassVar = [("pause_queue", "Can pause and resume queues")]

    def __str__(self) -> str:
        return self.name
