"""Series for the charts: from the snapshots of queues, ending with the current state."""

import html
from datetime import timedelta
from typing import Any, Final, NamedTuple

from django.db.models import Min
from django.utils import timezone
from django.utils.html import strip_tags
from django.utils.translation import get_language
from django.utils.translation import gettext as _

from queue_app.core.priorities import Band
from queue_app.core.shared import Shared
from queue_app.dashboard.sentences import entry_sentence
from queue_app.diagnose import live
from queue_app.models import AuditEntry, Queue, Worker
from queue_app.sql import charts as rows


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


def _read(key: str) -> rows.Series:
    name, _, queue = key.partition(" ")
    queues = [queue] if queue else list(Queue.objects.values_list("name", flat=True))
    chosen = RANGES[name]
    return rows.series(queues, timezone.now() - chosen.length, chosen.step)


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
    return {
        "range": name,
        "from": now - chosen.length.total_seconds(),
        "to": now,
        "times": [*series.times, now],
        "values": {key: [*column, last.get(key)] for key, column in series.values.items()},
    }
