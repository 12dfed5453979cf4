"""Series for the charts: from the snapshots of queues, ending with the current state."""

import html
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from django.db.models import Min
from django.template.loader import render_to_string
from django.utils import timezone
from django.utils.html import strip_tags
from django.utils.safestring import SafeString
from django.utils.translation import get_language, gettext as _

from queue_app.core.counters import from_json, percentile
from queue_app.core.priorities import Band
from queue_app.core.shared import Shared
from queue_app.dashboard import labels
from queue_app.dashboard.sentences import entry_sentence
from queue_app.diagnose import live
from queue_app.models import AuditEntry, Queue, TaskStats, Worker
from queue_app.models.stats import StatsKind
from queue_app.services.upkeep.task_stats import UNITS
from queue_app.sql import stats


class Range(NamedTuple):
    """Length, step (s), and the seconds for which viewers share the answer."""

    length: timedelta
    step: float
    fresh: float


RANGES: Final = {
    "15m": Range(timedelta(minutes=15), 60, 10),
    "1h": Range(timedelta(hours=1), 60, 10),
    "24h": Range(timedelta(hours=24), 600, 60),
    "7d": Range(timedelta(days=7), 3600, 300),
}
DEFAULT: Final = "1h"
#: Most seconds between two snapshots of a minute, one of which may be late.
LONGEST_MINUTE: Final = 180.0


def _read(key: str) -> stats.Series:
    name, _, queue = key.partition(" ")
    queues = [queue] if queue else list(Queue.objects.values_list("name", flat=True))
    chosen = RANGES[name]
    return stats.series(queues, timezone.now() - chosen.length, chosen.step)


_shared: Final = Shared(_read, lambda key: RANGES[key.partition(" ")[0]].fresh)


#: Maximum number of marks in a chart: the newest.
MAX_MARKS: Final = 12
#: Actions of staff that change the course of a chart.
_MARKED: Final = ("pause", "resume", "edit", "cancel_all", "replay_many", "discard_many", "drain", "retry_all")


def _read_marks(key: str) -> list[dict[str, Any]]:
    since = timezone.now() - RANGES[key.partition(" ")[0]].length
    targets = ("queue", "limit", "runtimesettings", "worker", "task", "deadletter")
    actions = [f"{target}.{what}" for target in targets for what in _MARKED]
    entries = AuditEntry.objects.filter(at__gte=since, action__in=actions).order_by("-id")[:MAX_MARKS]
    found = [(entry.at, html.unescape(strip_tags(entry_sentence(entry, lambda *_args: "")))) for entry in entries]
    versions = Worker.objects.exclude(version="").order_by().values_list("version").annotate(Min("started_at"))
    found += [(at, _("first worker of version %(version)s") % {"version": version}) for version, at in versions]
    newest = sorted((each for each in found if each[0] >= since), key=lambda each: each[0])[-MAX_MARKS:]
    return [{"at": at.timestamp(), "text": text} for at, text in newest]


_marks: Final = Shared(_read_marks, lambda key: RANGES[key.partition(" ")[0]].fresh)


def marks(name: str) -> list[dict[str, Any]]:
    """Return what staff and deployments did in a range, oldest first."""
    return _marks.get(f"{name} {get_language()}")


def chart_data(name: str, queue: str) -> dict[str, Any]:
    """Return the series of a range, for one queue or (with ``""``) for all.

    Raises ``KeyError`` for an unknown range.
    """
    chosen = RANGES[name]
    series = _shared.get(f"{name} {queue}")
    present = live.current()
    now = present.at.timestamp()
    queues = [row for row in present.queues if not queue or row.queue.name == queue]
    last: dict[str, float | None] = {band.label: 0 for band in Band}
    last["active"] = sum(row.active for row in queues)
    for band in (band for row in queues for band in row.bands):
        last[band.band.label] = (last[band.band.label] or 0) + band.depth
    times, places = _with_gaps([*series.times, now], chosen.step)
    columns = {key: [*column, last.get(key)] for key, column in series.values.items()}
    return {
        "range": name,
        "from": now - chosen.length.total_seconds(),
        "to": now,
        "times": times,
        "values": {key: [None if at is None else column[at] for at in places] for key, column in columns.items()},
    }


def _with_gaps(times: Sequence[float], step: float) -> tuple[list[float], list[int | None]]:
    """Return times, with one more in each gap in which nothing was measured, and the place of each; ``None`` in one."""
    found: list[tuple[float, int | None]] = []
    for place, at in enumerate(times):
        if found and at - found[-1][0] > max(1.5 * step, LONGEST_MINUTE):
            found.append((found[-1][0] + step, None))
        found.append((at, place))
    return [at for at, _place in found], [place for _at, place in found]


# Charts of one task type, user or key as SVG: ended tasks and run times by hour or day.

_WIDTH, _HEIGHT = 720, 90
DAYS: Final = 30
#: Place, size and title of a bar.
type _Bar = tuple[float, float, float, float, str]


def timeline(rows: Sequence[TaskStats], kind: StatsKind) -> SafeString:
    """Return the ended tasks of the last 30 days by hour (of a type) or by day, failed ones in red; empty for none."""
    if not rows:
        return SafeString("")
    unit, end = UNITS[kind], timezone.now()
    slots = int(timedelta(days=DAYS) / unit)
    begin, step = end - slots * unit, _WIDTH / slots
    top = max(row.completed + row.failed + row.other for row in rows)
    done, bad = list[_Bar](), list[_Bar]()
    for row in rows:
        x, width = (row.since - begin) / unit * step, max(step * 0.9, 1.0)
        failed, rest = _HEIGHT * row.failed / top, _HEIGHT * (row.completed + row.other) / top
        title = _("%(at)s: %(completed)d completed, %(failed)d failed, %(other)d cancelled or expired") % {
            "at": _when(row.since), "completed": row.completed, "failed": row.failed, "other": row.other,
        }  # fmt: skip
        if x > -step:
            bad.append((x, _HEIGHT - failed, width, failed, title))
            done.append((x, _HEIGHT - failed - rest, width, rest, title))
    most = _("at most %(count)d in an hour") if kind is StatsKind.TYPE else _("at most %(count)d in a day")
    words = _("Ended tasks of the last %(days)d days") % {"days": DAYS}
    return _chart(
        words, [_day(begin), most % {"count": top}, _day(end)], {"tq-piece-done": done, "tq-piece-failed": bad}
    )


#: Number of hours, or of days, in the chart of run times.
RUN_SLOTS: Final = {StatsKind.TYPE: 168, StatsKind.USER: DAYS, StatsKind.KEY: DAYS}


def run_times(rows: Sequence[TaskStats], kind: StatsKind, releases: Mapping[str, datetime]) -> SafeString:
    """Return median and p95 of the run times by hour (7 days) or day (30 days), with a mark where a version began.

    The lines have gaps where nothing ended.
    """
    unit, slots = UNITS[kind], RUN_SLOTS[kind]
    end = timezone.now()
    begin, step = end - slots * unit, _WIDTH / slots
    counts = [(row.since, from_json(row.runs)) for row in rows if row.since > begin - unit]
    found = [(since, percentile(runs, 0.5) or 0, percentile(runs, 0.95) or 0) for since, runs in counts if runs]
    if not found:
        return SafeString("")
    low, top = (choose(p95 for _since, _p50, p95 in found) for choose in (min, max))
    lines: dict[str, list[list[str]]] = {"p95": [], "p50": []}
    hovers, last = list[_Bar](), None
    for since, p50, p95 in found:
        x = (since - begin) / unit * step
        for name, value in (("p95", p95), ("p50", p50)):
            if since - unit != last:
                lines[name].append([])
            y = f"{_HEIGHT - 2 - (_HEIGHT - 6) * value / (top or 1):.1f}"
            lines[name][-1] += [f"{x:.1f},{y}", f"{x + step:.1f},{y}"]
        words = _("%(at)s: p95 %(p95)s, median %(p50)s") % {
            "at": _when(since), "p95": labels.duration(p95), "p50": labels.duration(p50),
        }  # fmt: skip
        hovers.append((x, 0, step, _HEIGHT, words))
        last = since
    marks = [((at - begin) / unit * step, 0, 2, _HEIGHT, version) for version, at in releases.items() if at > begin]
    text = _("Run times: p95 from %(low)s to %(high)s") % {"low": labels.duration(low), "high": labels.duration(top)}
    named = [_("│ version %(version)s") % {"version": f"{each[4]}, {_when(releases[each[4]])}"} for each in marks]
    axis = [_day(begin), _("at most %(time)s") % {"time": labels.duration(top)}, _day(end)]
    legend = [_("— p95"), _("┄ median"), *named[-MAX_MARKS:]]
    return _chart(text, axis, {"tq-mark": marks, "tq-hover": hovers}, lines, legend)


def _day(value: datetime) -> str:
    return f"{timezone.localtime(value):%Y-%m-%d}"


def _when(value: datetime) -> str:
    return f"{timezone.localtime(value):%Y-%m-%d %H:%M %Z}"


def _chart(
    words: str, axis: Sequence[str], bars: Mapping[str, Sequence[_Bar]],
    lines: Mapping[str, Sequence[Sequence[str]]] = MappingProxyType({}), legend: Sequence[str] = (),
) -> SafeString:  # fmt: skip
    """Return a chart of lines and of bars, in groups by their class."""
    groups = {
        name: [(*(f"{size:.1f}" for size in sizes), title) for *sizes, title in group] for name, group in bars.items()
    }
    context = {"words": words, "axis": axis, "groups": groups, "lines": lines, "legend": legend}
    return render_to_string("admin/queue_app/includes/chart.html", context | {"size": (_WIDTH, _HEIGHT)})
