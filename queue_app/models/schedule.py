"""Schedules and their ticks."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Any, ClassVar, Final

from django.core.serializers.json import DjangoJSONEncoder
from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models
from django.db.models import F, Q
from django.utils.dateparse import parse_datetime
from django.utils.translation import gettext_lazy as _lazy

from queue_app.core.recurrence import Recurrence
from queue_app.core.states import FAILURES
from queue_app.models.fields import (
    NAME_LENGTH,
    PRIORITY_CHOICES,
    STATUS_CHOICES,
    TYPE_LENGTH,
    JSONField,
    SealedJSONField,
    choices_of,
)
from queue_app.models.limits import Pausable, constraints_of, indexed_if_set, optional_seconds
from queue_app.models.task import OptionColumns

MAX_CATCH_UP: Final = 1000
#: What is encrypted while the project has a key.
SEALED_FIELDS: Final = ("args", "parameters", "declaration")
MAX_JITTER: Final = 86_400.0
MAX_GRACE: Final = 604_800.0


class CatchUp(StrEnum):
    """What becomes of ticks that were missed, because no scheduler ran for example."""

    SKIP = "skip"  # none of them runs
    LAST = "last"  # the latest one runs
    ALL = "all"  # the latest `catch_up_limit` within `catch_up_seconds` run


class Overlap(StrEnum):
    """What a tick does while a task of an earlier tick is pending."""

    ALLOW = "allow"  # enqueue anyway
    SKIP = "skip"  # enqueue nothing
    QUEUE_ONE = "queue_one"  # wait until the earlier task has ended; at most one tick waits
    CANCEL_PREVIOUS = "cancel_previous"  # cancel the earlier task, then enqueue


class TickKind(StrEnum):
    """Why there was a tick."""

    DUE = "due"
    CAUGHT_UP = "caught_up"
    MANUAL = "manual"
    BACKFILL = "backfill"


class Schedule(OptionColumns, Pausable):
    """A task that is enqueued again and again: which task, when, and what to do if a tick is late or overlaps."""

    name = models.CharField(max_length=NAME_LENGTH, unique=True)
    notes = models.TextField(blank=True, default="")

    task_type = models.CharField(max_length=TYPE_LENGTH)
    args = SealedJSONField(default=list, blank=True)
    parameters = SealedJSONField(default=dict, blank=True)
    instant_parameter = models.CharField(
        max_length=NAME_LENGTH,
        blank=True,
        default="",
        help_text=_lazy(
            "Name of the parameter that gets the tick's instant, as text such as 2026-01-31T08:00:00+00:00."
            " Empty: none."
        ),
    )
    queue = models.CharField(max_length=NAME_LENGTH)
    priority = models.SmallIntegerField(choices=PRIORITY_CHOICES)

    cron = models.CharField(
        max_length=100,
        blank=True,
        default="",
        help_text=_lazy('Five fields (or six, with seconds first) such as "*/15 8-18 * * MON-FRI", or "@daily".'),
    )
    every = optional_seconds(_lazy("Instead of cron: seconds between two ticks."), least=1)
    anchor = models.DateTimeField(
        null=True, blank=True, help_text=_lazy("An instant of the interval. Empty: the year 1970.")
    )
    instants = JSONField(
        default=list,
        blank=True,
        encoder=DjangoJSONEncoder,
        help_text=_lazy("Instead of cron: a list of times with zones."),
    )
    zone = models.CharField(max_length=64, default="UTC", help_text=_lazy("Time zone of the cron expression."))
    starts_at = models.DateTimeField(null=True, blank=True, help_text=_lazy("No tick before this time."))
    ends_at = models.DateTimeField(null=True, blank=True, help_text=_lazy("No tick at this time or later."))
    jitter = models.FloatField(
        default=0,
        validators=[MinValueValidator(0), MaxValueValidator(MAX_JITTER)],
        help_text=_lazy("Ticks are put off by up to this many seconds, so that schedules do not all run at once."),
    )

    grace_seconds = models.FloatField(
        default=60,
        db_default=60,
        validators=[MinValueValidator(1), MaxValueValidator(MAX_GRACE)],
        help_text=_lazy("A tick that is late by less runs. A later one is missed."),
    )
    catch_up = models.CharField(max_length=4, choices=choices_of(CatchUp), default=CatchUp.LAST.value)
    catch_up_limit = models.PositiveSmallIntegerField(
        default=10, validators=[MinValueValidator(1), MaxValueValidator(MAX_CATCH_UP)]
    )
    catch_up_seconds = models.FloatField(
        default=86_400, validators=[MinValueValidator(1)], help_text=_lazy("Older ticks are not caught up.")
    )
    overlap = models.CharField(max_length=15, choices=choices_of(Overlap), default=Overlap.ALLOW.value)

    #: Values that the code declares, by field; null: staff made the schedule. A field with another value is overridden.
    declaration = SealedJSONField(null=True, blank=True, editable=False, encoder=DjangoJSONEncoder)
    next_instant = models.DateTimeField(null=True, blank=True, editable=False)  # null: it will not tick again
    held_instant = models.DateTimeField(null=True, blank=True, editable=False)  # tick that waits for an earlier task
    due_at = models.DateTimeField(null=True, blank=True, editable=False)  # when a scheduler has to check it
    created_at = models.DateTimeField(auto_now_add=True)
    updated_at = models.DateTimeField(auto_now=True)

    class Meta:
        ordering: ClassVar = ["name"]
        indexes: ClassVar = [
            # schedules.tick
            indexed_if_set("due_at", name="taskqueue_schedules_due")
        ]
        constraints: ClassVar = [
            *constraints_of(Pausable),
            models.CheckConstraint(
                condition=(
                    Q(every__isnull=True, instants=[]) & ~Q(cron="")
                    | Q(cron="", instants=[], every__gte=1)
                    | Q(cron="", every__isnull=True) & ~Q(instants=[])
                ),
                name="taskqueue_schedule_when",
                violation_error_message="Give one of cron, every and instants.",
            ),
            models.CheckConstraint(condition=Q(catch_up__in=list(CatchUp)), name="taskqueue_schedule_catch_up"),
            models.CheckConstraint(condition=Q(overlap__in=list(Overlap)), name="taskqueue_schedule_overlap"),
            models.CheckConstraint(
                condition=Q(starts_at__isnull=True) | Q(ends_at__isnull=True) | Q(ends_at__gt=F("starts_at")),
                name="taskqueue_schedule_range",
                violation_error_message="The end must be after the start.",
            ),
        ]
        permissions: ClassVar = [
            ("pause_schedule", "Can pause and resume schedules"),
            ("run_schedule", "Can run schedules now, and backfill them"),
        ]

    def __str__(self) -> str:
        return self.name

    @property
    def is_declared(self) -> bool:
        """Whether the code declares it."""
        return self.declaration is not None

    @property
    def recurrence(self) -> Recurrence:
        return Recurrence(
            cron=self.cron,
            every=self.every,
            anchor=self.anchor,
            instants=tuple(_times(self.instants)),
            zone=self.zone,
            starts_at=self.starts_at,
            ends_at=self.ends_at,
        )


class ScheduleTick(models.Model):
    """One tick of a schedule: the task that it enqueued, or why there is none."""

    schedule = models.ForeignKey(Schedule, on_delete=models.CASCADE, related_name="ticks", db_index=False)
    instant = models.DateTimeField()
    kind = models.CharField(max_length=9, choices=choices_of(TickKind))
    at = models.DateTimeField()  # when a scheduler decided
    late_seconds = models.FloatField(default=0)  # from the instant and its jitter until then
    task_id = models.UUIDField(null=True, blank=True)
    reason = models.TextField(blank=True, default="")  # why there is no task, or what else the tick did
    first_instant = models.DateTimeField(null=True, blank=True)  # the record is about all ticks from here to `instant`
    count = models.PositiveIntegerField(default=1)  # number of these ticks
    #: How the task ended, copied from its row, which is deleted earlier than the tick; null: not known (yet).
    outcome = models.CharField(max_length=12, choices=STATUS_CHOICES, null=True, blank=True)  # noqa: DJ001
    run_seconds = models.FloatField(null=True, blank=True)

    class Meta:
        ordering: ClassVar = ["-instant"]
        indexes: ClassVar = [
            indexed_if_set("task_id", name="taskqueue_ticks_by_task"),
            # schedules.tick: ticks whose task may run, or may have ended
            models.Index(
                fields=["schedule"],
                condition=Q(task_id__isnull=False, outcome__isnull=True),
                name="taskqueue_ticks_open",
            ),
            models.Index(fields=["at"], name="taskqueue_ticks_by_age"),  # services.upkeep.maintenance: purge
            # schedules.sql: schedules of which some tick has failed
            models.Index(fields=["schedule"], condition=Q(outcome__in=sorted(FAILURES)), name="taskqueue_ticks_failed"),
        ]
        constraints: ClassVar = [
            # schedules.tick: every tick once; also serves the history of a schedule
            models.UniqueConstraint(fields=["schedule", "instant"], name="taskqueue_tick_once"),
            models.CheckConstraint(
                condition=Q(task_id__isnull=False) | ~Q(reason=""), name="taskqueue_tick_task_or_reason"
            ),
        ]

    def __str__(self) -> str:
        return f"tick of {self.schedule_id} at {self.instant.isoformat()}"


def _times(values: Any) -> list[datetime]:
    return [value if isinstance(value, datetime) else parse_datetime(value) for value in values]  # type: ignore[misc]
