"""The overview, with the likely reasons why tasks wait: most general first, each with a remedy."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from queue_app.dashboard import labels
from queue_app.dashboard.live import Live, current
from queue_app.dashboard.queues import QueueRow

#: Maximum number of late schedules, and of failing ones, that are named.
NAMED: Final = 5


@dataclass(frozen=True, slots=True)
class Reason:
    """One reason; for all queues if ``queue`` is empty. ``severe`` reasons stop all work, or are unexpected."""

    text: str
    queue: str = ""
    severe: bool = False


def overview_context(user: Any) -> dict[str, Any]:
    """Return the overview, without queues and workers that the user may not see."""
    if not user.has_perm("queue_app.view_queue"):
        return {"live": None}
    now = current()
    by_queue: dict[str, list[Reason]] = {}
    for reason in reasons(now):
        by_queue.setdefault(reason.queue, []).append(reason)
    return {
        "live": now,
        "general": by_queue.pop("", []) + (list(of_schedules(now)) if user.has_perm("queue_app.view_schedule") else []),
        "rows": [(row, by_queue.get(row.queue.name, [])) for row in now.queues],
        "may_view_workers": user.has_perm("queue_app.view_worker"),
        "may_view_tasks": user.has_perm("queue_app.view_task"),
        "may_view_letters": user.has_perm("queue_app.view_deadletter"),
    }


def reasons(live: Live) -> list[Reason]:
    """Return why tasks wait."""
    return [*_general(live), *(reason for row in live.queues for reason in of_queue(row, live.at))]


def _general(live: Live) -> Iterator[Reason]:
    if live.index == "unreachable":
        yield Reason(
            _("Redis cannot be reached. Tasks are safe in PostgreSQL, but no task starts until Redis is back."),
            severe=True,
        )
    elif live.index != "ready":
        yield Reason(
            _("The index is %(state)s. No task starts until a scheduler or worker has rebuilt it from PostgreSQL.")
            % {"state": live.index},
            severe=True,
        )
    if live.has_leader is False:
        yield Reason(
            _(
                "No scheduler is running: due tasks are not queued, tasks of dead workers are not requeued."
                " Start manage.py runscheduler."
            ),
            severe=True,
        )
    elif live.has_leader and not live.watched.looks:
        yield Reason(
            _("A scheduler leads, but has not looked for work that stands still: its loop may hang. Restart it."),
            severe=True,
        )
    for stall in live.watched.stalls:
        yield Reason(f"{stall.text} {stall.steps}".strip(), severe=True)
    if not live.active_workers:
        yield Reason(_("No worker is active. Start one with manage.py runworker."), severe=bool(live.depth))
    settings = live.settings
    if getattr(settings, "paused", False):
        yield Reason(_paused(_("Everything"), settings), severe=True)
    if settings.cap is not None and live.active >= settings.cap and live.depth:
        yield Reason(
            _("The limit over all queues is reached: %(active)d of %(cap)d tasks are running.")
            % {"active": live.active, "cap": settings.cap}
        )
    if live.late_workers:
        yield Reason(
            ngettext(
                "%(count)d worker has missed heartbeats. Its tasks are queued again once it counts as dead.",
                "%(count)d workers have missed heartbeats. Their tasks are queued again once they count as dead.",
                live.late_workers,
            )
            % {"count": live.late_workers}
        )


def of_schedules(live: Live) -> Iterator[Reason]:
    """Yield which schedules have not run, or fail again and again."""
    for late in live.overdue[:NAMED]:
        text = _("The schedule %(name)s was due %(time)s ago and has not run since.")
        yield Reason(text % {"name": late.name, "time": labels.age(late.seconds)}, severe=True)
    for failing in live.failing[:NAMED]:
        text = _("The schedule %(name)s has failed %(count)d times in a row.")
        yield Reason(text % {"name": failing.name, "count": failing.failures}, severe=True)
    more = len(live.overdue[NAMED:]) + len(live.failing[NAMED:])
    if more:
        text = ngettext("%(count)d more schedule is late or fails.", "%(count)d more schedules are late or fail.", more)
        yield Reason(text % {"count": more}, severe=True)


def of_queue(row: QueueRow, now: datetime) -> Iterator[Reason]:
    """Yield why the tasks of one queue wait."""
    queue = row.queue
    if queue.paused:
        yield Reason(_paused(_("The queue"), queue), queue.name)
    if not row.depth:
        return
    if not row.workers:
        yield Reason(_("No active worker serves it."), queue.name, severe=True)
    if queue.cap is not None and (row.active or 0) >= queue.cap:
        yield Reason(
            _("Its limit is reached: %(active)d of %(cap)d tasks are running.")
            % {"active": row.active, "cap": queue.cap},
            queue.name,
        )
    throttled: datetime | None = getattr(queue, "throttled_until", None)
    if throttled is not None and throttled > now:
        seconds = labels.duration((throttled - now).total_seconds())
        text = _("Task code asked to slow down: no task starts for %(seconds)s.") % {"seconds": seconds}
        yield Reason(text, queue.name)
    if getattr(queue, "rate_count", None) and not queue.paused:
        limits = {"count": queue.rate_count, "seconds": labels.duration(queue.rate_seconds or 0)}
        yield Reason(_("It has a rate limit: %(count)d per %(seconds)s.") % limits, queue.name)


def _paused(what: str, paused: object) -> str:
    by, why = getattr(paused, "paused_by", ""), getattr(paused, "paused_reason", "")
    text = _("%(what)s is paused") % {"what": what}
    text += _(" by %(by)s") % {"by": by} if by else ""
    text += f": {why.rstrip('.')}." if why else "."
    resume_at: datetime | None = getattr(paused, "resume_at", None)
    if resume_at is not None:
        # A length, not a time of day, because viewers in several time zones share the text.
        left = labels.age((resume_at - timezone.now()).total_seconds())
        text += _(" It resumes in %(time)s.") % {"time": left}
    return text
