"""Questions that interfaces ask of the task table, by name."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import Any, Self

from django.db import models
from django.db.models import Case, F, Q, Value, When
from django.db.models.functions import Now

from queue_app.core.priorities import Band
from queue_app.core.promotion import PROMOTED, Thresholds, rises
from queue_app.core.states import PENDING, PENDING_NAME, TERMINAL, Status
from queue_app.models.policy import PriorityPolicy


def expand_statuses(names: Iterable[str]) -> frozenset[Status]:
    """Return the states that ``names`` stand for; ``pending`` is a composite.

    Raises ``ValueError`` for a name that is no state.
    """
    statuses: set[Status] = set()
    for name in names:
        statuses |= PENDING if name == PENDING_NAME else {Status(name)}
    return frozenset(statuses)


def seen_as(user: Any) -> str | None:
    """Return the name whose tasks alone ``user`` may see; ``None`` for who may see all."""
    may_see_all = user.is_active and user.is_staff and user.has_perm("queue_app.view_task")
    return None if may_see_all else user.get_username()


class TaskQuerySet(models.QuerySet[Any]):
    """Tasks, filtered in the words of the field."""

    def in_status(self, *names: str) -> Self:
        """Keep the tasks in any of the named states; ``pending`` is accepted."""
        return self._any_of(expand_statuses(names))

    def pending(self) -> Self:
        """Keep what is scheduled, queued or executing."""
        return self._any_of(PENDING)

    def terminal(self) -> Self:
        """Keep what has ended."""
        return self._any_of(TERMINAL)

    def ended(self) -> Self:
        """Keep what has ended, said by its time: the condition of the indexes of such tasks."""
        return self.filter(finished_at__isnull=False)

    def _any_of(self, statuses: frozenset[Status]) -> Self:
        """Keep the tasks in one of the states, spelt out: PostgreSQL joins partial indexes for OR, but not for IN."""
        condition = Q()
        for status in sorted(statuses):
            condition |= Q(status=status)
        return self.filter(condition) if statuses else self.none()

    def visible_to(self, user: Any) -> Self:
        """Keep what ``user`` may see: everything for staff who may view tasks, else their own."""
        name = seen_as(user)
        return self if name is None else self.filter(user=name)

    def with_effective_priority(self, thresholds: Thresholds | None = None) -> Self:
        """Annotate ``effective_priority``: the band that promotion gives a queued task by now, else its own.

        By the policies of the bands, which cost one more query unless ``thresholds`` are given.
        """
        if thresholds is None:
            thresholds = PriorityPolicy.thresholds(self.db)
        risen = [
            When(
                status=Status.QUEUED,
                priority=band,
                queued_at__lte=Now() - timedelta(seconds=rise.after),
                then=Value(int(rise.to)),
            )
            for band in PROMOTED
            for rise in reversed(list(rises(band, thresholds)))  # the highest that is reached
        ]
        effective = Case(*risen, default=F("priority"), output_field=models.SmallIntegerField())
        return self.annotate(effective_priority=effective)

    def in_effective_band(self, bands: Iterable[Band]) -> Self:
        """Keep the tasks that promotion has brought into, or left in, any of the bands; only what waits rises."""
        own = Q(priority__in=bands) & ~Q(status=Status.QUEUED)
        return self.with_effective_priority().filter(own | Q(status=Status.QUEUED, effective_priority__in=bands))
