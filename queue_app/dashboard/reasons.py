"""Why is nothing moving? The likely reasons, most general first, each with what to do."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from queue_app.dashboard import labels
from queue_app.dashboard.live import Live
from queue_app.dashboard.queue_row import QueueRow


@dataclass(frozen=True, slots=True)
class Reason:
    """One reason; ``queue`` is empty when it concerns everything. ``severe`` ones stop all or unexpectedly."""

    text: str
    queue: str = ""
    severe: bool = False


def reasons(live: Live) -> list[Reason]:
    """Return why tasks wait that could be expected to run."""
    return [*_general(live), *(reason for row in live.queues for reason in of_queue(row, live.at))]


def _general(live: Live) -> Iterator[Reason]:
    if live.index == "unreachable":
        yield Reason(
            _("Redis cannot be reached. Tasks are safe in PostgreSQL; nothing new starts until it is back."),
            severe=True,
        )
    elif live.index != "ready":
        yield Reason(
            _("The index is %(state)s. Nothing new starts until a scheduler or worker has rebuilt it from the rows.")
            % {"state": live.index},
            severe=True,
        )
    if live.has_leader is False:
        yield Reason(
            _("No scheduler leads: due tasks stay scheduled and nothing is repaired. Start manage.py runscheduler."),
            severe=True,
        )
    if not live.active_workers:
        yield Reason(_("No worker is active. Start one with manage.py runworker."), severe=bool(live.depth))
    settings = live.settings
    if getattr(settings, "paused", False):
        yield Reason(_paused(_("Everything"), settings), severe=True)
    if settings.max_concurrent is not None and live.active >= settings.max_concurrent and live.depth:
        yield Reason(
            _("The limit over all queues is reached: %(active)d of %(cap)d run.")
            % {"active": live.active, "cap": settings.max_concurrent}
        )
    if live.late_workers:
        yield Reason(
            ngettext(
                "%(count)d worker has missed heartbeats; what it runs is returned when it is declared dead.",
                "%(count)d workers have missed heartbeats; what they run is returned when they are declared dead.",
                live.late_workers,
            )
            % {"count": live.late_workers}
        )


def of_queue(row: QueueRow, now: datetime) -> Iterator[Reason]:
    """Yield why the queued tasks of one queue wait."""
    queue = row.queue
    if queue.paused:
        yield Reason(_paused(_("The queue"), queue), queue.name)
    if not row.depth:
        return
    if not row.workers:
        yield Reason(_("No active worker serves it."), queue.name, severe=True)
    if row.is_full:
        yield Reason(
            _("Its cap is reached: %(active)d of %(cap)d run.") % {"active": row.active, "cap": queue.max_concurrent},
            queue.name,
        )
    throttled: datetime | None = getattr(queue, "throttled_until", None)
    if throttled is not None and throttled > now:
        seconds = labels.duration((throttled - now).total_seconds())
        text = _("Task code asked to slow down: nothing starts for %(seconds)s.") % {"seconds": seconds}
        yield Reason(text, queue.name)
    if getattr(queue, "rate_count", None) and not queue.paused:
        limits = {"count": queue.rate_count, "seconds": labels.duration(queue.rate_seconds or 0)}
        yield Reason(_("Its rate lets %(count)d start in %(seconds)s.") % limits, queue.name)


def _paused(what: str, of: object) -> str:
    by, why = getattr(of, "paused_by", ""), getattr(of, "paused_reason", "")
    text = _("%(what)s is paused") % {"what": what}
    text += _(" by %(by)s") % {"by": by} if by else ""
    text += f": {why}" if why else "."
    resume_at: datetime | None = getattr(of, "resume_at", None)
    if resume_at is not None:
        # Not the time of day: what all viewers share cannot be in the zone of each.
        left = labels.age((resume_at - timezone.now()).total_seconds())
        text += _(" It goes on in %(time)s.") % {"time": left}
    return text
