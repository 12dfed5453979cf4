"""Dead letters by cause: what failed alike counts as one, with how often, since when, and whether it goes on."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

from django.db.models import Count, Max, Min, QuerySet
from django.db.models.functions import TruncHour
from django.utils import timezone

from queue_app.core.fingerprint import normalise
from queue_app.models import DeadLetter

#: Groups on the page: the most frequent ones.
MAX_GROUPS: Final = 100
TREND: Final = timedelta(hours=24)


@dataclass(slots=True)
class Group:
    """Dead letters of one cause; ``latest`` is an example."""

    fingerprint: str
    count: int
    first: datetime
    last: datetime
    latest: DeadLetter
    trend: list[int] = field(default_factory=list)  # by hour of the last day, oldest first

    @property
    def wording(self) -> str:
        """The message without what differs each time."""
        return normalise(self.latest.message)

    @property
    def last_hour(self) -> int:
        """How many came in the hour that is not over."""
        return self.trend[-1] if self.trend else 0


def groups(letters: QuerySet[Any] | None = None) -> list[Group]:
    """Return the open dead letters by cause, the most frequent first: three queries, however many there are."""
    source = DeadLetter.objects.open() if letters is None else letters
    rows = list(
        source.order_by()
        .values("fingerprint")
        .annotate(count=Count("pk"), first=Min("died_at"), last=Max("died_at"))
        .order_by("-count", "fingerprint")[:MAX_GROUPS]
    )
    names = [row["fingerprint"] for row in rows]
    known = source.filter(fingerprint__in=names)
    latest = {
        letter.fingerprint: letter for letter in known.order_by("fingerprint", "-died_at").distinct("fingerprint")
    }
    trends = _trends(known)
    return [
        Group(row["fingerprint"], row["count"], row["first"], row["last"], latest[row["fingerprint"]],
              trends.get(row["fingerprint"], [0] * _HOURS))
        for row in rows
        if row["fingerprint"] in latest
    ]  # fmt: skip


_HOURS: Final = int(TREND.total_seconds() // 3600)


def _trends(letters: QuerySet[Any]) -> dict[str, list[int]]:
    """Return by cause how many died in each hour of the last day."""
    now = timezone.now()
    last = now.replace(minute=0, second=0, microsecond=0)
    begin = last - timedelta(hours=_HOURS - 1)
    found: dict[str, list[int]] = {}
    counted = (
        letters.filter(died_at__gte=begin)
        .order_by()
        .values("fingerprint", hour=TruncHour("died_at"))
        .annotate(count=Count("pk"))
    )
    for row in counted:
        place = int((row["hour"] - begin).total_seconds() // 3600)
        if 0 <= place < _HOURS:
            found.setdefault(row["fingerprint"], [0] * _HOURS)[place] = row["count"]
    return found
