"""Columns that queues, limits and the runtime settings share: caps, rates and pauses."""

from __future__ import annotations

import math
from typing import Any, ClassVar

from django.core.exceptions import ValidationError
from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models
from django.db.models import F, Q
from django.db.models.expressions import Combinable
from django.utils.translation import gettext_lazy as _lazy

from queue_app import conf
from queue_app.core.adaptive import ALGORITHM, FORMER
from queue_app.models.audit_entry import REASON_LENGTH
from queue_app.models.columns import NAME_LENGTH, USER_LENGTH
from queue_app.models.fields import AlgorithmField

#: Larger values are typing errors and would not limit anything.
MAX_CAP = 1_000_000
MAX_RATE_SECONDS = 31 * 86_400.0

type _Given = float | str | Combinable | None


def optional_count(help_text: Any, *, most: int | None = MAX_CAP) -> models.PositiveIntegerField[_Given, int | None]:
    """Return a column for a number from 1 to ``most``; null for none."""
    limits = [MinValueValidator(1), *([] if most is None else [MaxValueValidator(most)])]
    return models.PositiveIntegerField(null=True, blank=True, validators=limits, help_text=help_text)


def optional_seconds(
    help_text: Any, *, least: float = 0.001, most: float | None = None
) -> models.FloatField[_Given, float | None]:
    """Return a column for a time from ``least`` to ``most`` seconds; null for none."""
    limits = [MinValueValidator(least), *([] if most is None else [MaxValueValidator(most)])]
    return models.FloatField(null=True, blank=True, validators=limits, help_text=help_text)


def text(
    length: int, help_text: Any = "", choices: list[tuple[str, str]] | None = None
) -> models.CharField[_Given, str]:
    """Return a column for a text that is empty by default, also for a statement that does not name it."""
    return models.CharField(
        max_length=length, blank=True, default="", db_default="", choices=choices, help_text=help_text
    )


def indexed_if_set(*fields: str, name: str) -> models.Index:
    """Return an index of the rows whose first of these columns is not null."""
    return models.Index(fields=fields, condition=Q(**{f"{fields[0]}__isnull": False}), name=name)


def check_if_set(name: str, **bound: float) -> models.CheckConstraint:
    """Return the check that a column is null or within ``bound``, a lookup such as ``max_length__gte=1``."""
    (lookup,) = bound
    unset = {f"{lookup.partition('__')[0]}__isnull": True}
    return models.CheckConstraint(condition=Q(**unset) | Q(**bound), name=name)


class Capped(models.Model):
    """A cap on tasks that run at the same time: fixed, or adaptive between a least and a most."""

    max_concurrent = optional_count(
        _lazy("Maximum number of tasks that run at the same time, over all workers. Empty: no limit.")
    )
    adaptive = AlgorithmField(
        max_length=10,
        blank=True,
        default="",
        db_default="",
        choices=[(ALGORITHM, ALGORITHM)],
        help_text=_lazy(
            "Algorithm that keeps the limit between min_concurrent and max_concurrent, by run times and failures."
            " Empty: the limit is max_concurrent."
        ),
    )
    min_concurrent = optional_count(_lazy("Least value of an adaptive limit. Empty: 1."))
    varies_by = text(
        NAME_LENGTH,
        _lazy(
            "Name of a parameter that decides how long tasks run, for an adaptive limit: it then compares only"
            " the run times of tasks with the same value."
        ),
    )
    probe = text(
        NAME_LENGTH,
        _lazy(
            "Name of a function in TASKQUEUE PROBES that returns the load of what the tasks use, 1 for a full"
            " one, for an adaptive limit. Empty: none."
        ),
    )
    current_concurrent = models.PositiveIntegerField(null=True, blank=True, editable=False)  # of an adaptive limit

    class Meta:
        abstract = True
        constraints: ClassVar = [
            check_if_set("taskqueue_%(class)s_cap", max_concurrent__gte=1),
            models.CheckConstraint(
                condition=Q(adaptive="") | Q(adaptive__in=sorted([ALGORITHM, *FORMER]), max_concurrent__isnull=False),
                name="taskqueue_%(class)s_adaptive",
                violation_error_message="An adaptive limit needs a most: enter max_concurrent.",
            ),
            models.CheckConstraint(
                condition=Q(min_concurrent__isnull=True)
                | Q(min_concurrent__gte=1, min_concurrent__lte=F("max_concurrent")),
                name="taskqueue_%(class)s_least",
                violation_error_message="The least is above the most.",
            ),
        ]

    def clean(self) -> None:
        """Refuse incomplete adaptive limits, with errors by field."""
        super().clean()
        least, most = self.min_concurrent, self.max_concurrent
        if self.adaptive and most is None:
            raise ValidationError({"max_concurrent": "An adaptive limit needs a most: enter the maximum number."})
        if least is not None and (most is None or least > most):
            raise ValidationError({"min_concurrent": f"The least ({least}) is above the most ({most or 'none'})."})
        if self.probe and self.probe not in conf.get().all_probes:
            known = ", ".join(sorted(conf.get().all_probes))
            raise ValidationError({"probe": f"TASKQUEUE PROBES has no {self.probe!r:.60}. It has: {known}."})

    @property
    def cap(self) -> int | None:
        """The limit in force: the present value if it is adaptive."""
        if not self.adaptive or self.current_concurrent is None or self.max_concurrent is None:
            return self.max_concurrent
        return max(self.min_concurrent or 1, min(self.current_concurrent, self.max_concurrent))


class Pausable(models.Model):
    """A pause: no new task starts, running tasks finish."""

    paused = models.BooleanField(
        default=False, db_default=False, help_text=_lazy("While paused, no new task starts; running tasks finish.")
    )
    paused_reason = text(REASON_LENGTH)
    paused_by = text(USER_LENGTH)
    paused_at = models.DateTimeField(null=True, blank=True)
    resume_at = models.DateTimeField(
        null=True, blank=True, help_text=_lazy("Time at which the pause ends. Empty: it ends when staff resume it.")
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
                violation_error_message="Only a pause can end: pause it too, or leave the time empty.",
            ),
        ]


class Paced(models.Model):
    """Limits on the rate of starts: a token bucket, and a minimum time between two starts."""

    rate_count = optional_count(_lazy("Maximum number of tasks that start in each period. Empty: no limit."))
    rate_seconds = optional_seconds(_lazy("Length of the period in seconds."), most=MAX_RATE_SECONDS)
    rate_burst = optional_count(
        _lazy("Maximum number of tasks that start at once after a quiet time. Empty: as many as in one period.")
    )
    min_delay_seconds = optional_seconds(
        _lazy("Minimum time between two starts, in seconds. Empty: none."), most=MAX_RATE_SECONDS
    )
    throttled_until = models.DateTimeField(
        null=True,
        blank=True,
        help_text=_lazy(
            "No task starts before this time. Task code sets it when another service asks it to slow down."
        ),
    )

    class Meta:
        abstract = True
        constraints: ClassVar = [
            models.CheckConstraint(
                condition=Q(rate_count__isnull=True, rate_seconds__isnull=True, rate_burst__isnull=True)
                | Q(rate_count__gte=1, rate_seconds__gt=0),
                name="taskqueue_%(class)s_rate",
                violation_error_message="A rate needs a number of starts and a period.",
            ),
            check_if_set("taskqueue_%(class)s_burst", rate_burst__gte=1),
            check_if_set("taskqueue_%(class)s_delay", min_delay_seconds__gt=0),
            models.CheckConstraint(
                condition=Q(min_delay_seconds__isnull=True)
                | Q(rate_count__isnull=True)
                | Q(min_delay_seconds__lte=F("rate_seconds") / F("rate_count")),
                name="taskqueue_%(class)s_pace",
                violation_error_message="The minimum time between starts is too long for the rate.",
            ),
        ]

    def clean(self) -> None:
        """Refuse incomplete and contradictory rates, with errors by field."""
        super().clean()
        errors: dict[str, str] = {}
        for name in ("rate_seconds", "min_delay_seconds"):
            value = getattr(self, name)
            if value is not None and not math.isfinite(value):
                errors[name] = "Enter a finite number of seconds."
        if self.rate_count is None and self.rate_seconds is not None:
            errors["rate_count"] = "Enter how many tasks may start in the period, or leave the period empty."
        if self.rate_count is not None and self.rate_seconds is None:
            errors["rate_seconds"] = "Enter the period in seconds, or leave the number of starts empty."
        if self.rate_burst is not None and self.rate_count is None:
            errors["rate_burst"] = "A burst needs a rate: enter a number of starts and a period."
        if not errors and self.rate_count and self.rate_seconds and self.min_delay_seconds:
            reached = self.rate_seconds / self.min_delay_seconds
            if self.min_delay_seconds > self.rate_seconds / self.rate_count:
                errors["min_delay_seconds"] = (
                    f"With this delay at most {reached:.3g} tasks can start in {self.rate_seconds:g} seconds, so the"
                    f" rate of {self.rate_count} can never be reached: enter one of the two, or a shorter delay."
                )
        if errors:
            raise ValidationError(errors)


def constraints_of(*bases: type[Any]) -> list[models.BaseConstraint]:
    """Return the constraints of abstract models, for a ``Meta`` that adds its own."""
    return [constraint for base in bases for constraint in base.Meta.constraints]
