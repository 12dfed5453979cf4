"""Limits: columns that queues and others share (caps, rates, pauses), limits of types and keys, policies of bands."""

from __future__ import annotations

import math
import unicodedata
import uuid
from typing import Any, ClassVar, Final

from django.core.exceptions import ValidationError
from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models
from django.db.models import F, Q
from django.db.models.expressions import Combinable
from django.utils.translation import gettext, gettext_lazy as _lazy

from queue_app import conf
from queue_app.core.limits import ALGORITHM, FORMER_ALGORITHMS, Gate, Scope
from queue_app.core.options import CONCURRENCY_KEY_LENGTH
from queue_app.core.priorities import Band, Thresholds
from queue_app.models.fields import NAME_LENGTH, PRIORITY_CHOICES, TYPE_LENGTH, USER_LENGTH, AlgorithmField, choices_of
from queue_app.models.operation import REASON_LENGTH

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
                condition=Q(adaptive="")
                | Q(adaptive__in=sorted([ALGORITHM, *FORMER_ALGORITHMS]), max_concurrent__isnull=False),
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


# Limits by task type or concurrency key, which staff edit; the index has a copy for claims.

#: Scopes that have limits here; a queue's limits are columns of the queue.
SCOPES: Final = (Scope.TYPE, Scope.KEY)
#: A key whose row has one of these has a limit of its own; that of its family does not hold for it.
HAS_OWN: Final = Q(max_concurrent__isnull=False) | Q(rate_count__isnull=False) | Q(min_delay_seconds__isnull=False)


class Limit(Capped, Paced, Pausable):
    """The limits of one task type, or of one concurrency key or family of keys.

    With the scope ``key``, a name without a colon, such as ``customer``, is also the limit of
    every key ``customer:…`` without a limit of its own. Each key has its own count.
    """

    scope = models.CharField(max_length=4, choices=choices_of(SCOPES))
    name = models.CharField(
        max_length=TYPE_LENGTH,
        help_text=_lazy(
            "A task type or a concurrency key. A key without a colon also limits each key that begins"
            " with it and a colon."
        ),
    )
    created_at = models.DateTimeField(auto_now_add=True)
    updated_at = models.DateTimeField(auto_now=True)

    class Meta:
        ordering: ClassVar = ["scope", "name"]
        constraints: ClassVar = [
            *constraints_of(Capped, Paced, Pausable),
            models.UniqueConstraint(
                fields=["scope", "name"],
                name="taskqueue_limit_once",
                violation_error_message="This task type or key already has limits: edit those.",
            ),
            models.CheckConstraint(condition=Q(scope__in=list(SCOPES)), name="taskqueue_limit_scope"),
            models.CheckConstraint(condition=~Q(name=""), name="taskqueue_limit_name"),
        ]
        permissions: ClassVar = [("pause_limit", "Can pause and resume task types and keys")]

    def __str__(self) -> str:
        return f"{gettext(self.scope)} {self.name}"

    @property
    def gate(self) -> Gate:
        return Gate(self.scope, self.name)

    def clean(self) -> None:
        """Refuse names that no task can have."""
        super().clean()
        if self.scope == Scope.KEY and len(self.name) > CONCURRENCY_KEY_LENGTH:
            raise ValidationError({"name": f"A concurrency key has at most {CONCURRENCY_KEY_LENGTH} characters."})
        if any(unicodedata.category(character)[0] == "C" for character in self.name):
            raise ValidationError({"name": "The name contains control or invisible characters."})
        if self.name != self.name.strip():
            raise ValidationError({"name": "The name begins or ends with a space."})


# The history of adaptive limits: their value, what was seen and why, one row a minute and one for each change.


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
    cause = models.CharField(max_length=10)  # as adaptive.algorithm.AdaptiveState
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


# Policies of the bands, settings that staff edit at run time, and the generation of the index.


class PriorityPolicy(models.Model):
    """Defaults for the tasks of one band."""

    priority = models.SmallIntegerField(primary_key=True, choices=PRIORITY_CHOICES)
    max_retries = models.PositiveSmallIntegerField(default=3)
    timeout_seconds = models.FloatField(default=600, validators=[MinValueValidator(0.001)])
    promote_after_seconds = optional_seconds(
        _lazy(
            "Tasks that have waited this long are treated as tasks of the next higher band, then rise by the"
            " value of that band, up to high. Empty: never. No effect for critical and high."
        ),
        least=1,
    )
    target_seconds = optional_seconds(
        _lazy("Longest wait that tasks of this band should have. The overview marks longer waits. Empty: none.")
    )

    class Meta:
        ordering: ClassVar = ["priority"]
        verbose_name_plural = "priority policies"
        constraints: ClassVar = [
            models.CheckConstraint(condition=Q(priority__gte=0, priority__lte=4), name="taskqueue_policy_band"),
            models.CheckConstraint(condition=Q(timeout_seconds__gt=0), name="taskqueue_policy_timeout"),
        ]

    def __str__(self) -> str:
        return str(self.get_priority_display())

    @classmethod
    def thresholds(cls, using: str | None = None) -> Thresholds:
        """Return how long a task waits in each band before it is promoted."""
        found = cls._default_manager.using(using).values_list("priority", "promote_after_seconds")
        return {Band(priority): seconds for priority, seconds in found}


class RuntimeSettings(Capped, Pausable):
    """Limits over all queues; one row."""

    id = models.SmallIntegerField(primary_key=True, default=1, editable=False)
    max_length = optional_count(
        _lazy(
            "Maximum number of waiting tasks in a queue that has no value of its own. It applies to tasks from"
            " the API and the request stream, not to tasks from code. Empty: as in the settings of the project."
        ),
        most=None,
    )
    max_pending_per_user = optional_count(
        _lazy(
            "Maximum number of pending tasks of one user, if the queue has no value of"
            " its own. Empty: as in the settings of the project."
        ),
        most=None,
    )
    updated_at = models.DateTimeField(auto_now=True)

    class Meta:
        verbose_name = verbose_name_plural = "runtime settings"
        constraints: ClassVar = [
            *constraints_of(Capped, Pausable),
            models.CheckConstraint(condition=Q(id=1), name="taskqueue_settings_single"),
            models.CheckConstraint(condition=Q(max_length__gte=1), name="taskqueue_settings_length"),
            check_if_set("taskqueue_settings_user_pending", max_pending_per_user__gte=1),
        ]

    def __str__(self) -> str:
        return gettext("runtime settings")

    @property
    def gate(self) -> Gate:
        return Gate("everything")


class IndexGeneration(models.Model):
    """The current generation of the index; one row.

    A rebuild raises ``number`` before it reads the rows, so claims that the old index proposed
    are refused. ``abandoned_until`` does the same for single proposals (``sql.claim``).
    """

    id = models.SmallIntegerField(primary_key=True, default=1, editable=False)
    database = models.UUIDField(default=uuid.uuid4, editable=False)  # part of the database's identity (sql.identity)
    number = models.BigIntegerField(default=0)
    abandoned_until = models.BigIntegerField(default=0, db_default=0)  # stamp of leases; grants up to it are refused
    started_at = models.DateTimeField(null=True, blank=True)
    ready_at = models.DateTimeField(null=True, blank=True)
    tasks = models.BigIntegerField(default=0)  # queued rows that the last rebuild wrote
    leases = models.BigIntegerField(default=0)  # executing rows that it wrote
    condemned = models.SmallIntegerField(default=0, db_default=0)  # condemnations in a row (services.notify.index)
    condemned_at = models.DateTimeField(null=True, blank=True)
    damaged_at = models.DateTimeField(null=True, blank=True)  # when the damage of this generation was first found
    condemned_because = models.CharField(max_length=300, blank=True, default="", db_default="")
    # The generation in which claims read the rows: if it is ``number``, those of now do.
    rows_number = models.BigIntegerField(default=-1, db_default=-1)
    way_since = models.DateTimeField(null=True, blank=True)  # when claims went over to the rows, or back to Redis
    way_because = models.CharField(max_length=300, blank=True, default="", db_default="")

    class Meta:
        verbose_name = "index"
        verbose_name_plural = "index"
        constraints: ClassVar = [models.CheckConstraint(condition=Q(id=1), name="taskqueue_generation_single")]

    def __str__(self) -> str:
        return gettext("generation %(n)d") % {"n": self.number}
