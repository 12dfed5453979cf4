"""A queue and its limits, which staff edit; the index has a copy for claims."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

from django.core.exceptions import ValidationError
from django.core.validators import MaxValueValidator, RegexValidator
from django.db import models
from django.db.models import F, Q
from django.utils.translation import gettext_lazy as _lazy

from queue_app.core.limits import ARRIVAL, FAIR, FIFO, ORDERS, Gate, Scope
from queue_app.exceptions import UnknownQueue
from queue_app.models.fields import NAME_LENGTH, USER_LENGTH, JSONField, choices_of
from queue_app.models.limits import (
    Capped,
    Paced,
    Pausable,
    check_if_set,
    constraints_of,
    optional_count,
    optional_seconds,
)

#: Names become parts of Redis keys, so they contain no braces, separators or control characters.
#: Maximum number of queues with whose names a mistyped one is compared.
MAX_COMPARED = 1000
NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9_.\-]*\Z"

MAX_FAIR_WEIGHTS = 1000
MIN_FAIR_WEIGHT, MAX_FAIR_WEIGHT = 0.001, 1000
SHARERS = ("user", "key")
_NEVER_STALE = "Enter the seconds after which tasks are stale, or do not expire them eagerly."


def check_fair_weights(value: Any) -> None:
    """Refuse weights other than ``{name: number above 0}``."""
    if not isinstance(value, Mapping):
        raise ValidationError('Enter an object such as {"alice": 2, "bob": 0.5}.')
    if len(value) > MAX_FAIR_WEIGHTS:
        raise ValidationError(f"Enter at most {MAX_FAIR_WEIGHTS} names; all others have the weight 1.")
    for name, weight in value.items():
        if not isinstance(name, str) or not 0 < len(name) <= USER_LENGTH or "\x00" in name:
            raise ValidationError(f"{name!r:.60} is not a user or key of 1 to {USER_LENGTH} characters.")
        if (
            type(weight) not in (int, float)
            or not math.isfinite(weight)
            or not MIN_FAIR_WEIGHT <= weight <= MAX_FAIR_WEIGHT
        ):
            raise ValidationError(
                f"The weight of {name!r:.60} must lie between {MIN_FAIR_WEIGHT} and {MAX_FAIR_WEIGHT}."
            )


class FairWeightsField(JSONField):
    """The weights of users or keys in a fair queue; migrations know it as a plain JSON field."""

    default_validators = [check_fair_weights]  # noqa: RUF012 - as Django declares it

    def deconstruct(self) -> Any:
        name, _, args, kwargs = super().deconstruct()
        return name, "django.db.models.JSONField", args, kwargs


class Queue(Capped, Paced, Pausable):
    """A named queue with its limits."""

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
    order = models.CharField(
        max_length=8,
        choices=choices_of(ORDERS),
        default=FIFO,
        db_default=FIFO,
        help_text=_lazy(
            "fifo: higher bands first, and first in, first out within a band. fair: users take turns within a band,"
            " each first in, first out. arrival: first in, first out over all bands, without promotion."
        ),
    )
    fair_by = models.CharField(
        max_length=4,
        choices=choices_of(SHARERS),
        default="user",
        db_default="user",
        help_text=_lazy("Whether users or concurrency keys take turns in a fair queue."),
    )
    fair_weights = FairWeightsField(
        default=dict,
        blank=True,
        db_default=models.Value({}, models.JSONField()),
        help_text=_lazy('Weights in a fair queue, such as {"alice": 2}. All others have the weight 1.'),
    )
    max_concurrent_per_user = optional_count(
        _lazy("Maximum number of tasks of one user that run at the same time. Empty: no limit.")
    )
    max_length = optional_count(
        _lazy(
            "Maximum number of waiting tasks. Empty: the value of the runtime settings for tasks from the API and"
            " the request stream, no limit for tasks from code."
        ),
        most=None,
    )
    max_pending_per_user = optional_count(
        _lazy("Maximum number of pending tasks of one user. Empty: the value of the runtime settings."),
        most=None,
    )
    max_retries = models.PositiveSmallIntegerField(
        null=True,
        blank=True,
        validators=[MaxValueValidator(100)],
        help_text=_lazy("Retries of a task that sets none itself. Empty: by the policy of the band."),
    )
    timeout_seconds = optional_seconds(
        _lazy("Timeout in seconds of a task that sets none itself. Empty: by the policy of the band.")
    )
    stale_after_seconds = optional_seconds(
        _lazy(
            "Seconds after which a queued task may expire. Empty: never; in a full queue with a max length of its"
            " own, after an hour."
        ),
        least=1,
    )
    expire_eagerly = models.BooleanField(
        default=False,
        db_default=False,
        help_text=_lazy("Expire stale tasks every minute, not only when the queue is full."),
    )
    created_at = models.DateTimeField(auto_now_add=True)
    updated_at = models.DateTimeField(auto_now=True)

    class Meta:
        ordering: ClassVar = ["name"]
        constraints: ClassVar = [
            *constraints_of(Capped, Paced, Pausable),
            models.CheckConstraint(condition=Q(order__in=ORDERS), name="taskqueue_queue_order"),
            models.CheckConstraint(condition=Q(fair_by__in=SHARERS), name="taskqueue_queue_sharer"),
            models.CheckConstraint(
                condition=Q(max_concurrent_per_user__isnull=True)
                | Q(max_concurrent_per_user__gte=1)
                & (Q(max_concurrent__isnull=True) | Q(max_concurrent_per_user__lte=F("max_concurrent"))),
                name="taskqueue_queue_user_cap",
                violation_error_message="The limit per user is above the limit of the queue.",
            ),
            check_if_set("taskqueue_queue_length", max_length__gte=1),
            check_if_set("taskqueue_queue_user_pending", max_pending_per_user__gte=1),
            check_if_set("taskqueue_queue_timeout", timeout_seconds__gt=0),
            check_if_set("taskqueue_queue_stale", stale_after_seconds__gt=0),
            models.CheckConstraint(
                condition=Q(expire_eagerly=False) | Q(stale_after_seconds__isnull=False),
                name="taskqueue_queue_expiry",
                violation_error_message=_NEVER_STALE,
            ),
        ]
        permissions: ClassVar = [("pause_queue", "Can pause and resume queues")]

    def __str__(self) -> str:
        return self.name

    @classmethod
    def by_arrival(cls, using: str | None = None) -> frozenset[str]:
        """Return the names of the queues whose tasks stand in one band, ``core.priorities.ARRIVAL_BAND``."""
        return frozenset(cls.objects.using(using).filter(order=ARRIVAL).values_list("name", flat=True))

    @classmethod
    def unknown(cls, name: str, *others: str, using: str | None = None) -> UnknownQueue:
        """Return the error for a name that no queue has, with similar names of queues and ``others``."""
        names = cls.objects.using(using).values_list("name", flat=True)[:MAX_COMPARED]
        return UnknownQueue(name, [*others, *names])

    @property
    def gate(self) -> Gate:
        return Gate(Scope.QUEUE, self.name)

    def clean(self) -> None:
        """Refuse contradictory limits, with errors by field."""
        super().clean()
        for name in ("timeout_seconds", "stale_after_seconds"):
            value = getattr(self, name)
            if value is not None and not math.isfinite(value):
                raise ValidationError({name: "Enter a finite number of seconds."})
        if self.expire_eagerly and self.stale_after_seconds is None:
            raise ValidationError({"expire_eagerly": _NEVER_STALE})
        whole, each = self.max_concurrent, self.max_concurrent_per_user
        if whole is not None and each is not None and each > whole:
            raise ValidationError(
                {"max_concurrent_per_user": f"The limit per user ({each}) is above the limit of the queue ({whole})."}
            )

    @property
    def by_user(self) -> bool:
        """Whether the index has separate lanes for each user: if users take turns or have a cap."""
        return self.max_concurrent_per_user is not None or (self.order == FAIR and self.fair_by == "user")
