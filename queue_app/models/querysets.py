"""Queries of the task table."""

from collections.abc import Iterable
from datetime import timedelta
from functools import reduce
from operator import or_
from typing import Any, Self

from django.db import models
from django.db.models import Case, F, Q, Value, When
from django.db.models.functions import Now

from queue_app.core.priorities import ARRIVAL_BAND, PROMOTED, Band, rises
from queue_app.core.states import OTHER_NAMES, PENDING, PENDING_NAME, Status
from queue_app.models.limits import PriorityPolicy
from queue_app.models.queue import Queue


def expand_statuses(names: Iterable[str]) -> frozenset[Status]:
    """Return the named states (``pending`` means several); raise ``ValueError`` for an unknown name."""
    statuses: set[Status] = set()
    for name in names:
        statuses |= PENDING if name == PENDING_NAME else {OTHER_NAMES.get(name) or Status(name)}
    return frozenset(statuses)


def _ended_or(statuses: Iterable[Status]) -> Q:
    return reduce(or_, (Q(status=status) for status in sorted(statuses)), Q(finished_at__isnull=False))


def restricted_to(user: Any, permission: str = "queue_app.view_task") -> str | None:
    """Return the name of the only user whose tasks ``user`` may see; ``None`` if ``user`` may see all tasks."""
    may_see_all = user.is_active and user.is_staff and user.has_perm(permission)
    return None if may_see_all else user.get_username()


class TaskQuerySet(models.QuerySet[Any]):
    """Tasks."""

    def in_status(self, *names: str) -> Self:
        """Keep tasks in any of the named states or ``pending``."""
        return self._any_of(expand_statuses(names))

    def pending(self) -> Self:
        """Keep blocked, scheduled, queued and executing tasks."""
        return self._any_of(PENDING)

    def ended(self) -> Self:
        """Keep ended tasks, by the condition of the partial indexes of ended tasks."""
        return self.filter(finished_at__isnull=False)

    def _any_of(self, statuses: frozenset[Status]) -> Self:
        """Keep tasks in one of the states, with OR: PostgreSQL combines partial indexes for OR, but not for IN."""
        condition = Q()
        for status in sorted(statuses):
            condition |= Q(status=status)
        return self.filter(condition) if statuses else self.none()

    def pending_or_ended(self) -> Self:
        """Keep every task, but say so in a way by which PostgreSQL combines the partial indexes of both kinds."""
        return self.filter(_ended_or(PENDING))

    def visible_to(self, user: Any) -> Self:
        """Keep tasks that ``user`` may see: all for staff who may view tasks, else the user's own."""
        name = restricted_to(user)
        return self if name is None else self.filter(user=name)

    def with_effective_priority(self) -> Self:
        """Annotate ``effective_priority``: the present band of a queued task after promotion, else its own band.

        All queued tasks of a queue of the order ``arrival`` stand in one band.
        """
        thresholds = PriorityPolicy.thresholds(self.db)
        by_arrival = Queue.by_arrival(self.db)
        level = [When(status=Status.QUEUED, queue__in=by_arrival, then=Value(int(ARRIVAL_BAND)))] if by_arrival else []
        risen = [
            When(
                status=Status.QUEUED,
                priority=band,
                queued_at__lte=Now() - timedelta(seconds=rise.after),
                then=Value(int(rise.to)),
            )
            for band in PROMOTED
            for rise in reversed(list(rises(band, thresholds)))  # the highest first
        ]
        effective = Case(*level, *risen, default=F("priority"), output_field=models.SmallIntegerField())
        return self.annotate(effective_priority=effective)

    def in_effective_band(self, bands: Iterable[Band]) -> Self:
        """Keep tasks whose effective band is one of ``bands``; only queued tasks are promoted."""
        own = Q(priority__in=bands) & _ended_or(PENDING - {Status.QUEUED})
        return self.with_effective_priority().filter(own | Q(status=Status.QUEUED, effective_priority__in=bands))
