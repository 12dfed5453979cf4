"""Suggest what staff could change, with numbers: from the statistics of the last half hour and the live workers.

Nothing here changes a limit. A suggestion that staff dismiss is a record of the audit log, and stays away for
``DISMISSED``. The snapshots of an idle queue, or of one that works through what waits, lead to none.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from math import ceil
from typing import Final

from django.utils import timezone

from queue_app.exceptions import IndexUnavailable
from queue_app.index import get_index
from queue_app.index.server import waiting_kinds
from queue_app.models import AuditEntry, Queue, Worker
from queue_app.models.worker import WorkerStatus
from queue_app.sql import advice as rows
from queue_app.sql.database import alias

#: Maximum number of suggestions at a time.
MOST: Final = 3
#: Period of the snapshots, and the number of them that are enough to judge.
PERIOD: Final = timedelta(minutes=30)
ENOUGH: Final = 10
#: Share of the snapshots in which a limit held tasks back, and seconds that the oldest of them waited.
OFTEN: Final = 0.8
LONG: Final = 120.0
#: Mean number of waiting tasks, and the share of one band of them, from which bands say nothing.
MANY_WAITING: Final = 20.0
MOST_OF_THEM: Final = 0.6
DISMISSED: Final = timedelta(days=30)
TARGET: Final = "advice"
_MAX_QUEUES: Final = 200


@dataclass(frozen=True, slots=True)
class Advice:
    """A suggestion: what was seen, and what to try. ``key`` names it for ``control.advice``."""

    key: str
    text: str
    hint: str
    queue: str = ""


def advice() -> list[Advice]:
    """Return the suggestions that nobody dismissed, at most ``MOST``."""
    found = [*_capabilities(), *_limits(), *_bands()]
    if not found:
        return []
    entries = AuditEntry.objects.using(alias()).filter(target=TARGET, at__gte=timezone.now() - DISMISSED)
    dismissed = set(entries.filter(target_id__in=[each.key for each in found]).values_list("target_id", flat=True))
    return [each for each in found if each.key not in dismissed][:MOST]


def _limits() -> Iterator[Advice]:
    """Suggest higher limits of queues that hold tasks back while slots of their workers are idle."""
    since = timezone.now() - PERIOD
    held = [
        seen
        for seen in rows.capped(since)
        if seen.snapshots >= ENOUGH and seen.at_limit >= OFTEN * seen.snapshots and (seen.oldest or 0) >= LONG
    ]
    if not held:
        return
    fixed = {queue.name: queue for queue in Queue.objects.using(alias()).filter(adaptive="", paused=False)}
    workers = list(Worker.objects.using(alias()).filter(status=WorkerStatus.ACTIVE))
    for seen in sorted(held, key=lambda each: -(each.oldest or 0)):
        queue = fixed.get(seen.queue)
        cap = queue.max_concurrent if queue is not None else None
        idle = sum(worker.free_slots for worker in workers if not worker.queues or seen.queue in worker.queues)
        if cap is None or idle <= 0 or seen.ended <= 0:
            continue
        busy = seen.active / seen.ended  # slots that one ended task took, in periods
        wanted = min(cap + idle, ceil(busy * (seen.enqueued + seen.waiting)))
        if wanted <= cap:
            continue
        text = (
            f"{seen.queue}: the limit {cap} holds {seen.waiting:,.0f} tasks, the oldest for {_span(seen.oldest or 0)},"
            f" while {idle} slots are idle. What came in the last {PERIOD.seconds // 60} minutes and what waits needs"
            f" {wanted}."
        )
        hint = (
            f"Try it: taskqueue simulate --last 1h --set queue:{seen.queue}.max_concurrent={wanted}. Raise it only if"
            " what the tasks use can bear it."
        )
        yield Advice(f"limit:{seen.queue}:{cap}", text, hint, seen.queue)


def _capabilities() -> Iterator[Advice]:
    """Say since when no worker offers the capabilities that waiting tasks require."""
    try:
        index = get_index()
        depths = [depth for depth in index.stats().queues if depth.total][:_MAX_QUEUES]
        needed = {(depth.queue, caps) for depth in depths for _, caps in waiting_kinds(index, depth.queue) if caps}
    except IndexUnavailable:
        return
    if not needed:
        return
    workers = list(Worker.objects.using(alias()).filter(status=WorkerStatus.ACTIVE))
    for queue, names in sorted(needed):
        if any(set(names) <= set(worker.capabilities) for worker in workers):
            continue
        since = rows.offered_until(names)
        when = f"since {timezone.localtime(since):%A %H:%M}" if since else "and none has, as far as the rows go"
        listed = ", ".join(names)
        text = f"{queue}: tasks wait that need {listed}; no worker offers that {when}."
        hint = f"Start manage.py runworker --capabilities {','.join(names)}, or cancel the tasks."
        yield Advice(f"capabilities:{queue}:{listed}", text, hint, queue)


def _bands() -> Iterator[Advice]:
    """Say that most waiting tasks are urgent, so that the bands above normal say nothing."""
    found = rows.waiting_by_band(timezone.now() - PERIOD)
    snapshots = max((number for _, number in found.values()), default=0)
    total = sum(number for number, _ in found.values())
    if snapshots < ENOUGH or total / snapshots < MANY_WAITING:
        return
    for band in ("critical", "high"):
        share = found.get(band, (0, 0))[0] / total
        if share >= MOST_OF_THEM:
            text = (
                f"The band {band} holds {share:.0%} of the waiting tasks ({total / snapshots:,.0f} on average): they"
                " wait for each other."
            )
            hint = "Give what can wait a lower priority, or add workers."
            yield Advice(f"band:{band}", text, hint)


def _span(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"  # noqa: PLR2004 - easily read
