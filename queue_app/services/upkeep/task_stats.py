"""Statistics of task types, users and concurrency keys: add the tasks that ended since the last run, and read the sums.

The time up to which tasks are counted is stored with the rows, in one transaction, under a lock on the job's row. So a
run that dies leaves nothing behind, and two runs at once count each task once.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from operator import attrgetter
from typing import Final, Self

from django.db.models import QuerySet
from django.utils import timezone

from queue_app.core import counters
from queue_app.models import MaintenanceJob, Queue, TaskStats
from queue_app.models.stats import StatsKind
from queue_app.sql.database import alias, atomic, clock
from queue_app.sql.stats import EndedInPeriod, EndedTotals, ended, of_windows

JOB: Final = "task_stats"
#: Longest time that one run makes up for.
LONGEST_GAP: Final = timedelta(hours=1)
#: A task's end is stored a moment before its commit; younger ends are left to the next run.
SETTLED: Final = timedelta(seconds=5)
#: Maximum number of users, and of keys, that one run counts: those with most tasks.
COUNTED_NAMES: Final = 1_000
#: Periods of the lists.
PERIODS: Final = {
    "1h": timedelta(hours=1),
    "24h": timedelta(hours=24),
    "7d": timedelta(days=7),
    "30d": timedelta(days=30),
}
#: Maximum number of users or keys in a list: those with most tasks.
LISTED_NAMES: Final = 500


def collect() -> int:
    """Count the tasks that ended since the last run; return how many."""
    jobs = MaintenanceJob.objects.using(alias())
    with atomic():
        jobs.get_or_create(name=JOB)
        job = jobs.select_for_update().get(name=JOB)
        until = clock() - SETTLED
        stored = job.progress.get("until")
        since = datetime.fromisoformat(stored) if stored else until - LONGEST_GAP
        since = max(since, until - LONGEST_GAP)
        if since >= until:
            return 0
        counted = 0
        for kind in StatsKind:
            found = ended(kind, since, until)
            if kind is StatsKind.TYPE:
                counted = sum(row.total for row in found)
            else:
                found = sorted(found, key=attrgetter("total"), reverse=True)[:COUNTED_NAMES]
            _add(kind, found)
        job.progress = {"until": until.isoformat()}
        job.started_at = job.succeeded_at = clock()
        job.done = counted
        job.save()
    return counted


def _add(kind: StatsKind, found: Sequence[EndedInPeriod]) -> None:
    if not found:
        return
    rows = TaskStats.objects.using(alias())
    stored = rows.filter(kind=kind, since__in={row.since for row in found}, name__in=[row.name for row in found])
    known = {(row.name, row.since): row for row in stored}
    changed = []
    for row in found:
        stats = known.get((row.name, row.since)) or TaskStats(kind=kind, name=row.name, since=row.since)
        stats.completed += row.completed
        stats.failed += row.failed
        stats.other += row.other
        stats.failures += row.failures
        stats.last_at = row.last_at or row.since
        stats.waits = counters.as_json(counters.from_json(stats.waits) + row.waits)
        stats.runs = counters.as_json(counters.from_json(stats.runs) + row.runs)
        stats.versions = dict(Counter(stats.versions) + row.versions)
        changed.append(stats)
    fields = ["completed", "failed", "other", "failures", "last_at", "waits", "runs", "versions"]
    rows.bulk_create(
        changed, update_conflicts=True, unique_fields=["kind", "name", "since"], update_fields=fields, batch_size=500
    )


@dataclass(frozen=True, slots=True)
class History:
    """The rows of one name over the longest period, and their sums over each."""

    rows: list[TaskStats]  # oldest first
    sums: dict[str, EndedTotals]  # by period


def history(kind: StatsKind, name: str) -> History:
    """Return the statistics of one name."""
    rows = list(_rows(kind, PERIODS["30d"]).filter(name=name).order_by("since"))
    now = timezone.now()
    return History(rows, {period: _sum(name, rows, now - length) for period, length in PERIODS.items()})


def _sum(name: str, rows: Iterable[TaskStats], begin: datetime) -> EndedTotals:
    found = EndedTotals(name)
    for row in rows:
        if row.last_at >= begin:
            found.add(row)
    return found


def _rows(kind: StatsKind, length: timedelta) -> QuerySet[TaskStats]:
    # The first hour or day counts whole; one in which the last task ended before the period does not.
    begin = timezone.now() - length
    rows = TaskStats.objects.using(alias()).filter(kind=kind, last_at__gte=begin)
    return rows.filter(since__gt=begin - UNITS[kind])


# Compare what ends now with an hour, a day and a week ago, and with the version before.

QUEUE: Final = "queue"
#: Kind -> the time that one row of its statistics covers. A window of the snapshots of queues may begin anywhere.
UNITS: Final = {
    StatsKind.TYPE: timedelta(hours=1), StatsKind.USER: timedelta(days=1), StatsKind.KEY: timedelta(days=1),
    QUEUE: timedelta(minutes=15),
}  # fmt: skip
BEFORE: Final = {"1h": timedelta(hours=1), "1d": timedelta(days=1), "7d": timedelta(days=7)}
#: Number of tasks below which a window says nothing about run times and failures.
ENOUGH: Final = 10
#: Number of hours or days before a release that it is compared with.
BEFORE_RELEASE: Final = 24

type Window = tuple[datetime, datetime]


@dataclass(frozen=True, slots=True)
class Ended:
    """What ended in a window of time."""

    total: int = 0
    failed: int = 0
    minutes: float = 1.0
    wait_p95: float | None = None
    run_p95: float | None = None
    last_at: datetime | None = None

    @classmethod
    def of(cls, found: EndedTotals, window: Window) -> Self:
        return cls(found.total, found.failed, _minutes(window), found.wait_p95, found.run_p95, found.last_at)

    @property
    def failed_share(self) -> float:
        return 100 * self.failed / self.total if self.total else 0.0

    @property
    def per_minute(self) -> float:
        return self.total / self.minutes


@dataclass(frozen=True, slots=True)
class Compared:
    """What ends now, beside what ended in a window before; a change is ``None`` if too few tasks ended to tell."""

    now: Ended
    before: Ended

    @property
    def slower(self) -> float | None:
        """Change of the run time (p95) in percent."""
        return _percent(self.now.run_p95, self.before.run_p95) if self._is_enough else None

    @property
    def failing(self) -> float | None:
        """Change of the share of failed tasks in percentage points."""
        return self.now.failed_share - self.before.failed_share if self._is_enough else None

    @property
    def busier(self) -> float | None:
        """Change of the tasks a minute in percent."""
        return _percent(self.now.per_minute, self.before.per_minute) if self.before.total >= ENOUGH else None

    @property
    def _is_enough(self) -> bool:
        return min(self.now.total, self.before.total) >= ENOUGH


@dataclass(frozen=True, slots=True)
class Listed(Compared):
    """A line of a list: a period, and the comparison."""

    name: str
    period: Ended


def _percent(now: float | None, before: float | None) -> float | None:
    return None if now is None or not before else 100 * (now / before - 1)


def _minutes(window: Window) -> float:
    since, until = window
    return max((until - since).total_seconds() / 60, 1.0)


def window_of_now(kind: str, now: datetime) -> tuple[Window, timedelta]:
    """Return the window that counts as now, and its length once it is over.

    It is the present hour (of users and keys: day, UTC). In its first sixth, the one before belongs to it, too.
    """
    unit = UNITS[kind]
    if kind == QUEUE:
        return (now - unit, now), unit
    begin, present = (
        datetime.fromtimestamp(at.timestamp() // unit.total_seconds() * unit.total_seconds(), UTC)
        for at in (now - unit / 6, now)
    )
    return (begin, now), present - begin + unit


def window_before(kind: str, back: timedelta, now: datetime) -> Window:
    """Return the window that now is compared with; it does not overlap with now."""
    (begin, _end), length = window_of_now(kind, now)
    since = begin - max(back, length)
    return since, since + length


def compare(kind: str, period: str, against: str) -> list[Listed]:
    """Return all names with ended tasks in a period; those with most tasks first. Raises ``KeyError``."""
    now = timezone.now()
    windows = [(now - PERIODS[period], now), window_of_now(kind, now)[0], window_before(kind, BEFORE[against], now)]
    if kind == QUEUE:
        found = _of_queues(list(Queue.objects.using(alias()).values_list("name", flat=True)), windows)
    else:
        found = _of_kind(StatsKind(kind), windows, PERIODS[period])
    lines = [Listed(now, before, name, whole) for name, (whole, now, before) in found.items() if whole.total]
    most = sorted(lines, key=lambda line: -line.period.total)
    return most[:LISTED_NAMES] if kind in {StatsKind.USER, StatsKind.KEY} else most


def compare_queue(name: str) -> dict[str, Compared]:
    """Return a queue now, compared with each time before."""
    now = timezone.now()
    windows = [window_of_now(QUEUE, now)[0], *(window_before(QUEUE, back, now) for back in BEFORE.values())]
    present, *earlier = _of_queues([name], windows)[name]
    return {key: Compared(present, before) for key, before in zip(BEFORE, earlier, strict=True)}


def _of_queues(names: Sequence[str], windows: Sequence[Window]) -> dict[str, list[Ended]]:
    found = {name: [Ended(minutes=_minutes(window)) for window in windows] for name in names}
    for row in of_windows(names, windows):
        place = row.place - 1
        total, minutes = row.completed + row.failed, _minutes(windows[place])
        found[row.queue][place] = Ended(total, row.failed, minutes, row.wait_p95, row.run_p95, row.last_at)
    return found


def _of_kind(kind: StatsKind, windows: Sequence[Window], period: timedelta) -> dict[str, list[Ended]]:
    rows = TaskStats.objects.using(alias()).filter(kind=kind)
    since, until = windows[-1]
    sums = [defaultdict[str, EndedTotals](lambda: EndedTotals("")) for _window in windows]
    for place, found in enumerate((_rows(kind, period), rows.filter(since__gte=windows[1][0]),
                                   rows.filter(since__gte=since, since__lt=until))):  # fmt: skip
        for row in found.iterator(2000):
            sums[place][row.name].add(row)
    return {
        name: [Ended.of(each[name], window) for each, window in zip(sums, windows, strict=True)]
        for name in list(sums[0])
    }


def compare_history(kind: StatsKind, rows: Sequence[TaskStats]) -> dict[str, Compared]:
    """Return one name now, compared with each time before, and with the hours or days before its newest version."""
    now = timezone.now()
    windows = {key: window_before(kind, back, now) for key, back in BEFORE.items() if back >= UNITS[kind]}
    if newest := [*releases(rows).items()][-1:]:
        [(version, at)] = newest
        windows[version] = max(at - BEFORE_RELEASE * UNITS[kind], rows[0].since), at
    present = _within(rows, (window_of_now(kind, now)[0][0], now))
    return {key: Compared(present, _within(rows, window)) for key, window in windows.items()}


def releases(rows: Sequence[TaskStats]) -> dict[str, datetime]:
    """Return {version of the worker: begin of the first hour or day in which it ran tasks}, but for the oldest rows."""
    first: dict[str, datetime] = {}
    for row in rows:
        for version in row.versions:
            first.setdefault(version, row.since)
    return {version: at for version, at in first.items() if at > rows[0].since}


def _within(rows: Iterable[TaskStats], window: Window) -> Ended:
    found = EndedTotals("")
    for row in rows:
        if window[0] <= row.since < window[1]:
            found.add(row)
    return Ended.of(found, window)
