"""What queues, limits and the runtime settings have in common: caps, rates and pauses."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import Any, ClassVar

from django.core.exceptions import ValidationError
from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models
from django.db.models import F, Q

from queue_app.models.audit_entry import REASON_LENGTH
from queue_app.models.columns import USER_LENGTH

#: Larger numbers than these are a slip of the keyboard, and would not limit anything.
MAX_CAP = 1_000_000
MAX_RATE_SECONDS = 31 * 86_400.0
MAX_THROTTLE = timedelta(days=31)

_CAP = (MinValueValidator(1), MaxValueValidator(MAX_CAP))
_SECONDS = (MinValueValidator(0.001), MaxValueValidator(MAX_RATE_SECONDS))


class Capped(models.Model):
    """A cap on what runs at the same time."""

    max_concurrent = models.PositiveIntegerField(
        null=True,
        blank=True,
        validators=_CAP,
        help_text="How many of its tasks may run at the same time, over all workers. Empty: no limit.",
    )

    class Meta:
        abstract = True
        constraints: ClassVar = [
            models.CheckConstraint(
                condition=Q(max_concurrent__isnull=True) | Q(max_concurrent__gte=1), name="taskqueue_%(class)s_cap"
            ),
        ]


class Pausable(models.Model):
    """Something that staff can pause: nothing of it starts, what runs finishes."""

    paused = models.BooleanField(
        default=False, db_default=False, help_text="While paused nothing new starts; what runs finishes."
    )
    paused_reason = models.CharField(max_length=REASON_LENGTH, blank=True, default="", db_default="")
    paused_by = models.CharField(max_length=USER_LENGTH, blank=True, default="", db_default="")
    paused_at = models.DateTimeField(null=True, blank=True)
    resume_at = models.DateTimeField(
        null=True, blank=True, help_text="When the pause ends by itself. Empty: only when somebody resumes it."
    )

    class Meta:
        abstract = True
        constraints: ClassVar = [
            models.CheckConstraint(
                condition=Q(paused=False) | Q(paused_at__isnull=False), name="taskqueue_%(class)s_paused_time"
            ),
            models.CheckConstraint(
                condition=Q(resume_at__isnull=True) | Q(paused=True),
                name="taskqueue_%(class)s_resume",
                violation_error_message="Only what is paused can resume: pause it too, or leave the time empty.",
            ),
        ]


class Paced(models.Model):
    """Limits on how often something starts: a token bucket, and a least time between two starts."""

    rate_count = models.PositiveIntegerField(
        null=True,
        blank=True,
        validators=_CAP,
        help_text="How many of its tasks may start in each period. Empty: no limit.",
    )
    rate_seconds = models.FloatField(
        null=True, blank=True, validators=_SECONDS, help_text="The length of that period in seconds."
    )
    rate_burst = models.PositiveIntegerField(
        null=True,
        blank=True,
        validators=_CAP,
        help_text="How many may start at once after a quiet time. Empty: as many as in one period.",
    )
    min_delay_seconds = models.FloatField(
        null=True, blank=True, validators=_SECONDS, help_text="The least time between two starts. Empty: none."
    )
    throttled_until = models.DateTimeField(
        null=True,
        blank=True,
        help_text="Nothing starts before this time: set by task code that was told to slow down.",
    )

    class Meta:
        abstract = True
        constraints: ClassVar = [
            models.CheckConstraint(
                condition=Q(rate_count__isnull=True, rate_seconds__isnull=True, rate_burst__isnull=True)
                | Q(rate_count__gte=1, rate_seconds__gt=0),
                name="taskqueue_%(class)s_rate",
                violation_error_message="A rate needs both a number of starts and a period.",
            ),
            models.CheckConstraint(
                condition=Q(rate_burst__isnull=True) | Q(rate_burst__gte=1), name="taskqueue_%(class)s_burst"
            ),
            models.CheckConstraint(
                condition=Q(min_delay_seconds__isnull=True) | Q(min_delay_seconds__gt=0),
                name="taskqueue_%(class)s_delay",
            ),
            models.CheckConstraint(
                condition=Q(min_delay_seconds__isnull=True)
                | Q(rate_count__isnull=True)
                | Q(min_delay_seconds__lte=F("rate_seconds") / F("rate_count")),
                name="taskqueue_%(class)s_pace",
                violation_error_message="With so long a delay between starts the rate can never be reached.",
            ),
        ]

    def clean(self) -> None:
        """Refuse rates that are incomplete or contradict each other, naming the field."""
        super().clean()
        errors: dict[str, str] = {}
        for name in ("rate_seconds", "min_delay_seconds"):
            value = getattr(self, name)
            if value is not None and not math.isfinite(value):
                errors[name] = "Enter a finite number of seconds."
        if self.rate_count is None and self.rate_seconds is not None:
            errors["rate_count"] = "Say how many may start in the period, or leave the period empty."
        if self.rate_count is not None and self.rate_seconds is None:
            errors["rate_seconds"] = "Say in how many seconds so many may start, or leave the number empty."
        if self.rate_burst is not None and self.rate_count is None:
            errors["rate_burst"] = "A burst needs a rate: say how many may start in which period."
        if not errors and self.rate_count and self.rate_seconds and self.min_delay_seconds:
            reached = self.rate_seconds / self.min_delay_seconds
            if self.min_delay_seconds > self.rate_seconds / self.rate_count:
                errors["min_delay_seconds"] = (
                    f"With this delay at most {reached:.3g} can start in {self.rate_seconds:g} seconds, so the rate of"
                    f" {self.rate_count} can never be reached: give one of the two, or a shorter delay."
                )
        if errors:
            raise ValidationError(errors)


def constraints_of(*bases: type[Any]) -> list[models.BaseConstraint]:
    """Return the constraints of abstract models, for the ``Meta`` of a model that adds its own."""
    return [constraint for base in bases for constraint in base.Meta.constraints]
