"""Policies of the bands, settings that staff edit at run time, and the generation of the index."""

import uuid
from typing import ClassVar

from django.core.validators import MinValueValidator
from django.db import models
from django.db.models import Q
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _lazy

from queue_app.core.limit_values import Gate
from queue_app.core.priorities import Band
from queue_app.core.promotion import Thresholds
from queue_app.models.columns import PRIORITY_CHOICES
from queue_app.models.limit_columns import (
    Capped,
    Pausable,
    check_if_set,
    constraints_of,
    optional_count,
    optional_seconds,
)


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

    class Meta:
        verbose_name = "index"
        verbose_name_plural = "index"
        constraints: ClassVar = [models.CheckConstraint(condition=Q(id=1), name="taskqueue_generation_single")]

    def __str__(self) -> str:
        return gettext("generation %(n)d") % {"n": self.number}
