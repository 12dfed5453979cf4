"""What the pages of schedules show: coming ticks, recent outcomes, and the week ahead."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import islice, takewhile
from zoneinfo import ZoneInfo

from django.utils import timezone
from django.utils.dateformat import format as date_format
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from queue_app.core.recurrence import Recurrence
from queue_app.dashboard import labels
from queue_app.models import Schedule
from queue_app.schedules.tick import RecentTick

#: Ticks that a preview shows.
PREVIEWED = 10
#: A schedule with more ticks in a week is listed above the table of hours instead of in it.
OFTEN = 7 * 12


def coming(recurrence: Recurrence, now: datetime) -> list[tuple[datetime, str]]:
    """Return the next ticks with their times in the zone of the schedule."""
    zone = ZoneInfo(recurrence.zone)
    instants = islice(recurrence.instants_after(now), PREVIEWED)
    return [(instant, date_format(instant.astimezone(zone), "D H:i:s T")) for instant in instants]


def strip(ticks: Sequence[RecentTick]) -> SafeString:
    """Return the outcomes of the newest ticks as a row of marks, oldest first, with their numbers in words."""
    if not ticks:
        return SafeString("-")
    shown = [(tick.status or "none", labels.exact(tick.tick.instant), _outcome(tick)) for tick in reversed(ticks)]
    counts = ", ".join(f"{count} {name}" for name, count in Counter(name for *_, name in shown).most_common())
    marks = format_html_join("", '<span class="tq-tick tq-status-{}" title="{}: {}"></span>', shown)
    text = _("last %(number)d: %(counts)s") % {"number": len(ticks), "counts": counts}
    return format_html('<span class="tq-strip" role="img" aria-label="{}">{}</span>', text, marks)


def _outcome(each: RecentTick) -> str:
    if each.status is not None:
        return labels.word(str(each.status))
    return _("skipped") if each.tick.task_id is None else _("unknown")


@dataclass(slots=True)
class Hour:
    """The ticks of one hour of the week: names, and the number at each moment."""

    names: list[str] = field(default_factory=list)
    moments: Counter[datetime] = field(default_factory=Counter)

    @property
    def at_once(self) -> int:
        """The largest number at one moment."""
        return max(self.moments.values(), default=0)

    @property
    def level(self) -> int:
        """How full the hour is, from 0 to 4."""
        return min(4, len(self.names).bit_length())


@dataclass(slots=True)
class Week:
    """The coming seven days in the viewer's zone."""

    days: list[datetime]
    rows: list[tuple[int, list[Hour]]]  # (hour, that hour on each day); none that is always empty
    often: list[tuple[Schedule, str]]  # schedules that tick more often than every two hours
    most_at_once: int
    zone: str


def week(schedules: Iterable[Schedule], now: datetime) -> Week:
    """Return what ticks when in the coming seven days."""
    start = timezone.localtime(now).replace(hour=0, minute=0, second=0, microsecond=0)
    end = start + timedelta(days=7)
    rows = [(hour, [Hour() for _day in range(7)]) for hour in range(24)]
    often: list[tuple[Schedule, str]] = []
    for schedule in schedules:
        if schedule.paused:
            continue
        ahead = takewhile(lambda instant: instant < end, schedule.recurrence.instants_after(now))
        instants = list(islice(ahead, OFTEN + 1))
        if len(instants) > OFTEN:
            often.append((schedule, labels.translate(schedule.recurrence.words)))
            continue
        for instant in instants:
            local = timezone.localtime(instant)
            found = rows[local.hour][1][(local.date() - start.date()).days]
            found.names.append(f"{schedule.name} {local:%H:%M}")
            found.moments[instant] += 1
    return Week(
        days=[start + timedelta(days=day) for day in range(7)],
        rows=[(hour, days) for hour, days in rows if any(each.names for each in days)],
        often=often,
        most_at_once=max(hour.at_once for _hour, days in rows for hour in days),
        zone=timezone.get_current_timezone_name(),
    )
