"""A replay of many dead letters, which goes on after whoever asked for it has left."""

from __future__ import annotations

from enum import StrEnum
from typing import ClassVar

from django.db import models
from django.db.models import Q

from queue_app.core.ids import uuid7

REASON_LENGTH = 200
USER_LENGTH = 150


class ReplayState(StrEnum):
    """Where a replay of many stands."""

    RUNNING = "running"
    DONE = "done"
    STOPPED = "stopped"  # the first ones failed again
    CANCELLED = "cancelled"  # by somebody


class ReplayOperation(models.Model):
    """What shall be replayed, how fast, and how far it has come; advanced by ``run_replays``."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    state = models.CharField(
        max_length=10, choices=[(state.value, state.value) for state in ReplayState], default=ReplayState.RUNNING
    )
    filter = models.JSONField(default=dict)  # services.dead_letters.DeadLetterFilter, as JSON
    pace = models.FloatField(null=True, blank=True)  # dead letters per second; null: as fast as it goes
    stop_after_failures = models.PositiveSmallIntegerField(default=5)  # 0: never
    by = models.CharField(max_length=USER_LENGTH, blank=True, default="")
    reason = models.CharField(max_length=REASON_LENGTH, blank=True, default="")
    total = models.PositiveIntegerField()  # what matched when it was asked for, at most its limit
    replayed = models.PositiveIntegerField(default=0)
    failed_again = models.PositiveIntegerField(default=0)  # of the first ones, see stop_after_failures
    skipped = models.PositiveIntegerField(default=0)  # purged, discarded or replayed by others meanwhile
    created_at = models.DateTimeField()  # what died later is left alone
    finished_at = models.DateTimeField(null=True, blank=True)
    ended_by = models.CharField(max_length=USER_LENGTH, blank=True, default="")  # who cancelled it
    cleared_at = models.DateTimeField(null=True, blank=True)  # one of the first ones did not fail again
    paced_at = models.DateTimeField()  # up to here the pace has been used
    after_died_at = models.DateTimeField(null=True, blank=True)  # the last dead letter that was looked at
    after_id = models.UUIDField(null=True, blank=True)

    class Meta:
        ordering: ClassVar = ["-id"]
        indexes: ClassVar = [
            # run_replays, every second or so
            models.Index(fields=["id"], condition=Q(state=ReplayState.RUNNING), name="taskqueue_replays_running"),
        ]
        constraints: ClassVar = [
            models.CheckConstraint(condition=Q(state__in=list(ReplayState)), name="taskqueue_replay_state"),
            models.CheckConstraint(condition=Q(pace__isnull=True) | Q(pace__gt=0), name="taskqueue_replay_pace"),
            models.CheckConstraint(
                condition=Q(state=ReplayState.RUNNING, finished_at__isnull=True)
                | Q(
                    state__in=[ReplayState.CANCELLED, ReplayState.DONE, ReplayState.STOPPED],
                    finished_at__isnull=False,
                ),
                name="taskqueue_replay_finished",
            ),
        ]

    def __str__(self) -> str:
        return f"replay of {self.total} dead letters: {self.state}"

    @property
    def remaining(self) -> int:
        """How many are still to be looked at."""
        return max(0, self.total - self.replayed - self.skipped) if self.state == ReplayState.RUNNING else 0

    @property
    def is_waiting_for_the_first(self) -> bool:
        """Whether it goes on only once one of the first tasks has ended well."""
        return (
            self.state == ReplayState.RUNNING
            and self.cleared_at is None
            and 0 < self.stop_after_failures <= self.replayed
        )
