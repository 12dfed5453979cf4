"""Statistics of task types, users and concurrency keys: add the tasks that ended since the last run, and read the sums.

The time up to which tasks are counted is stored with the rows, in one transaction, under a lock on the job's row. So a
run that dies leaves nothing behind, and two runs at once count each task once.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import reduce
from operator import attrgetter, or_
from typing import Any, Final, Self

from django.db.models import Q, QuerySet
from django.utils import timezone

from queue_app.core import counters
from queue_app.models import MaintenanceJob, Queue, TaskStats
from queue_app.models.stats import StatsKind
from queue_app.sql.database import alias, atomic, clock
from queue_app.sql.stats import EndedInPeriod, EndedTotals, OfWindow, ended, of_windows

JOB: Final = "task_stats"
#: Longest time that one run makes up for.
LONGEST_GAP: Final = timedelta(hours=1)
#: A task's end is stored a moment before its commit; younger ends are left to the next run.
SETTLED: Final = timedelta(seconds=5)
#: Maximum number of users, and of keys, that one run counts: those with most tasks.
COUNTED_NAMES: Final = 1_000

type Window = tuple[datetime, datetime]

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
    now = timezone.now()
    windows = {period: (now - length, now) for period, length in PERIODS.items()}
    rows = list(_rows(kind, [windows["30d"]]).filter(name=name).order_by("since"))
    return History(rows, dict(zip(windows, _sums(rows, list(windows.values()))[name], strict=True)))


def _rows(kind: str, windows: Sequence[Window]) -> QuerySet[TaskStats]:
    """Return the hours or days of a kind in which tasks ended in one of the windows; each of them counts whole."""
    unit = UNITS[kind]
    some = [Q(last_at__gte=since, since__gt=since - unit, since__lt=until) for since, until in windows]
    return TaskStats.objects.using(alias()).filter(reduce(or_, some), kind=kind)


def _sums(rows: Iterable[TaskStats], windows: Sequence[Window]) -> dict[str, list[EndedTotals]]:
    """Return the sums of each name in each window."""
    found = defaultdict[str, list[EndedTotals]](lambda: [EndedTotals("") for _window in windows])
    for row in rows:
        for totals, (since, until) in zip(found[row.name], windows, strict=True):
            if row.last_at >= since and row.since < until:
                totals.add(row)
    return found


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


@dataclass(frozen=True, slots=True)
class Ended:
    """What ended in a window of time."""

    total: int = 0
    failed: int = 0
    minutes: float = 1.0
    wait_p95: float | None = None
    run_p95: float | None = None

    @classmethod
    def of(cls, found: EndedTotals | OfWindow, window: Window) -> Self:
        minutes = max((window[1] - window[0]).total_seconds() / 60, 1.0)
        return cls(found.total, found.failed, minutes, found.wait_p95, found.run_p95)

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


def windows_of(kind: str, backs: Iterable[timedelta]) -> list[Window]:
    """Return the window that counts as now, and those with which it is compared; they do not overlap with it.

    Now is the present hour (of users and keys: day, UTC). In its first sixth, the one before belongs to it, too.
    """
    unit, now = UNITS[kind], timezone.now()
    begin, length = now - unit, unit
    if kind != QUEUE:
        begin, present = (_begin_of(unit, at) for at in (now - unit / 6, now))
        length += present - begin
    starts = (begin - max(back, length) for back in backs)
    return [(begin, now), *((since, since + length) for since in starts)]


def _begin_of(unit: timedelta, at: datetime) -> datetime:
    seconds = unit.total_seconds()
    return datetime.fromtimestamp(at.timestamp() // seconds * seconds, UTC)


def compare(kind: str, period: str, against: str) -> list[Listed]:
    """Return all names with ended tasks in a period; those with most tasks first. Raises ``KeyError``."""
    windows = windows_of(kind, [BEFORE[against]])
    until = windows[0][1]
    names = Queue.objects.using(alias()).values_list("name", flat=True) if kind == QUEUE else ()
    found = _ended(kind, [*windows, (until - PERIODS[period], until)], names)
    lines = [Listed(now, before, name, whole) for name, (now, before, whole) in found.items() if whole.total]
    most = sorted(lines, key=lambda line: -line.period.total)
    return most[:LISTED_NAMES] if kind in {StatsKind.USER, StatsKind.KEY} else most


def _ended(kind: str, windows: Sequence[Window], queues: Iterable[str] = ()) -> dict[str, list[Ended]]:
    """Return what ended of each name of a kind, or in each of the queues, in each window."""
    found: dict[str, list[Any]] = defaultdict(list)
    if kind == QUEUE:
        for row in of_windows(list(queues), windows):
            found[row.queue].append(row)
    else:
        found |= _sums(_rows(kind, windows).iterator(2000), windows)
    return {name: [Ended.of(*each) for each in zip(of_name, windows, strict=True)] for name, of_name in found.items()}


def compare_queue(name: str) -> dict[str, Compared]:
    """Return a queue now, compared with each time before."""
    now, *before = _ended(QUEUE, windows_of(QUEUE, BEFORE.values()), [name])[name]
    return {key: Compared(now, each) for key, each in zip(BEFORE, before, strict=True)}


def compare_history(kind: StatsKind, rows: Sequence[TaskStats]) -> dict[str, Compared]:
    """Return one name now, compared with each time before, and with the hours or days before its newest version."""
    if not rows:
        return {}
    backs = {key: back for key, back in BEFORE.items() if back >= UNITS[kind]}
    windows = dict(zip(["", *backs], windows_of(kind, backs.values()), strict=True))
    for version, at in [*releases(rows).items()][-1:]:
        windows[version] = max(at - BEFORE_RELEASE * UNITS[kind], rows[0].since), at
    sums = _sums(rows, list(windows.values()))[rows[0].name]
    now, *before = map(Ended.of, sums, windows.values())
    return {key: Compared(now, each) for key, each in zip([*windows][1:], before, strict=True)}


def releases(rows: Sequence[TaskStats]) -> dict[str, datetime]:
    """Return {version of the worker: begin of the first hour or day in which it ran tasks}, but for the oldest rows."""
    first: dict[str, datetime] = {}
    for row in rows:
        for version in row.versions:
            first.setdefault(version, row.since)
    return {version: at for version, at in first.items() if at > rows[0].since}
