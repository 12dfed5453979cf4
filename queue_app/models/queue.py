"""A queue and its limits, which staff edit; the index carries a copy for the claim."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from django.core.exceptions import ValidationError
from django.core.validators import MaxValueValidator, MinValueValidator, RegexValidator
from django.db import models
from django.db.models import F, Q

from queue_app.models.columns import NAME_LENGTH, USER_LENGTH
from queue_app.models.limit_columns import MAX_CAP, Capped, Paced, Pausable, constraints_of

if TYPE_CHECKING:  # generic in the stubs only
    _JSONField = models.JSONField[Any, Any]
else:
    _JSONField = models.JSONField

#: Names become parts of Redis keys, so neither braces nor separators nor control characters pass.
NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9_.\-]*\Z"


MAX_FAIR_WEIGHTS = 1000
MIN_FAIR_WEIGHT, MAX_FAIR_WEIGHT = 0.001, 1000
ORDERS = ("fifo", "fair")
SHARERS = ("user", "key")


def check_fair_weights(value: Any) -> None:
    """Refuse weights of a fair queue that are not ``{name: number above 0}``."""
    if not isinstance(value, Mapping):
        raise ValidationError('Enter an object such as {"alice": 2, "bob": 0.5}.')
    if len(value) > MAX_FAIR_WEIGHTS:
        raise ValidationError(f"Name at most {MAX_FAIR_WEIGHTS}; all others have the weight 1.")
    for name, weight in value.items():
        if not isinstance(name, str) or not 0 < len(name) <= USER_LENGTH:
            raise ValidationError(f"{name!r:.60} is not a user or key of 1 to {USER_LENGTH} characters.")
        if (
            type(weight) not in (int, float)
            or not math.isfinite(weight)
            or not MIN_FAIR_WEIGHT <= weight <= MAX_FAIR_WEIGHT
        ):
            raise ValidationError(
                f"The weight of {name!r:.60} must lie between {MIN_FAIR_WEIGHT} and {MAX_FAIR_WEIGHT}."
            )


class FairWeightsField(_JSONField):
    """The weights of users or keys in a fair queue; migrations know it as a plain JSON field."""

    default_validators = [check_fair_weights]  # noqa: RUF012 - as Django declares it

    def deconstruct(self) -> Any:
        """Describe the column."""
        name, _, args, kwargs = super().deconstruct()
        return name, "django.db.models.JSONField", args, kwargs


class Queue(Capped, Paced, Pausable):
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
    order = models.CharField(
        max_length=4,
        choices=[(order, order) for order in ORDERS],
        default="fifo",
        db_default="fifo",
        help_text="fifo: first in, first out. fair: inside a band users take turns, each first in, first out.",
    )
    fair_by = models.CharField(
        max_length=4,
        choices=[(sharer, sharer) for sharer in SHARERS],
        default="user",
        db_default="user",
        help_text="Who takes turns in a fair queue: users, or concurrency keys.",
    )
    fair_weights = FairWeightsField(
        default=dict,
        blank=True,
        db_default=models.Value({}, models.JSONField()),
        help_text='Shares of a fair queue, such as {"alice": 2}. Who is not named has the weight 1.',
    )
    max_concurrent_per_user = models.PositiveIntegerField(
        null=True,
        blank=True,
        validators=[MinValueValidator(1), MaxValueValidator(MAX_CAP)],
        help_text="How many tasks of one user may run at the same time. Empty: no limit.",
    )
    max_length = models.PositiveIntegerField(
        null=True,
        blank=True,
        validators=[MinValueValidator(1)],
        help_text="How many tasks may wait in it, whoever enqueues. Empty: the default of the runtime settings for"
        " what comes from outside, no limit for code.",
    )
    max_pending_per_user = models.PositiveIntegerField(
        null=True,
        blank=True,
        validators=[MinValueValidator(1)],
        help_text="How many tasks of one user may be scheduled, queued or executing. Empty: as the runtime settings"
        " say.",
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
        help_text="Tasks that have been queued for so long may be given up as expired. Empty: never, except in a full"
        " queue with a max length of its own: there after an hour.",
    )
    expire_eagerly = models.BooleanField(
        default=False, db_default=False, help_text="Give stale tasks up every minute, not only when room is needed."
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
                violation_error_message="One user may not run more than the whole queue.",
            ),
            models.CheckConstraint(
                condition=Q(max_length__isnull=True) | Q(max_length__gte=1), name="taskqueue_queue_length"
            ),
            models.CheckConstraint(
                condition=Q(max_pending_per_user__isnull=True) | Q(max_pending_per_user__gte=1),
                name="taskqueue_queue_user_pending",
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
        ]
        permissions: ClassVar = [("pause_queue", "Can pause and resume queues")]

    def __str__(self) -> str:
        return self.name

    def clean(self) -> None:
        """Refuse limits that contradict each other, naming the field."""
        super().clean()
        for name in ("timeout_seconds", "stale_after_seconds"):
            value = getattr(self, name)
            if value is not None and not math.isfinite(value):
                raise ValidationError({name: "Enter a finite number of seconds."})
        if self.expire_eagerly and self.stale_after_seconds is None:
            raise ValidationError(
                {"expire_eagerly": "Say after how many seconds tasks are stale, or do not expire them eagerly."}
            )
        whole, each = self.max_concurrent, self.max_concurrent_per_user
        if whole is not None and each is not None and each > whole:
            raise ValidationError(
                {"max_concurrent_per_user": f"One user may not run more ({each}) than the whole queue ({whole})."}
            )

    @property
    def by_user(self) -> bool:
        """Whether the index keeps the tasks of each user apart: where users take turns, or have a cap."""
        return self.max_concurrent_per_user is not None or (self.order == "fair" and self.fair_by == "user")
