"""Suggest what staff could change, with numbers: from statistics, the live workers and simulations.

Nothing here changes a limit. A dismissal is a record of the audit log, and hides the suggestion for ``DISMISSED``. A
queue that is idle, or works through its backlog, gets no suggestion.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from django.utils import timezone

from queue_app.core.limit_values import Scope
from queue_app.core.simulation import span
from queue_app.exceptions import IndexUnavailable
from queue_app.index import get_index
from queue_app.index.server import waiting_kinds
from queue_app.models import AuditEntry, Worker
from queue_app.models.worker import WorkerStatus
from queue_app.services.read.held import ENOUGH, PERIOD, held
from queue_app.services.read.trials import trials_of
from queue_app.sql import advice as rows
from queue_app.sql.database import alias

#: Maximum number of suggestions at a time.
MOST: Final = 3
#: Bands order nothing if at least this many tasks wait on average, and one band has this share of them.
MANY_WAITING: Final = 20.0
MOST_OF_THEM: Final = 0.6
DISMISSED: Final = timedelta(days=30)
TARGET: Final = "advice"
_MAX_QUEUES: Final = 200
_MAX_LIMITS: Final = 20


@dataclass(frozen=True, slots=True)
class Advice:
    """A suggestion: what was seen, and what to try. ``key`` names it for ``control.advice``."""

    key: str
    text: str
    hint: str
    queue: str = ""


def advice() -> list[Advice]:
    """Return at most ``MOST`` suggestions, without those that staff have dismissed."""
    found = [*_capabilities(), *_limits(), *_bands()]
    if not found:
        return []
    entries = AuditEntry.objects.using(alias()).filter(target=TARGET, at__gte=timezone.now() - DISMISSED)
    dismissed = set(entries.filter(target_id__in=[each.key for each in found]).values_list("target_id", flat=True))
    return [each for each in found if each.key not in dismissed][:MOST]


def _limits() -> Iterator[Advice]:
    """Suggest higher limits where tasks wait while slots are idle, with the waits that a simulation found, if any."""
    some = held()
    trials = trials_of(some)
    for each in some[:_MAX_LIMITS]:
        name = each.name if each.scope == Scope.QUEUE else f"{each.scope} {each.name}"
        text = (
            f"{name}: the limit {each.cap} holds {each.waiting:,.0f} tasks, the oldest for {span(each.oldest)},"
            f" while {each.idle} slots are idle."
        )
        trial = trials.get(each.limit)
        if trial is None:
            minutes = PERIOD.seconds // 60
            text += f" The tasks of the last {minutes} minutes and those that wait need {each.wanted}."
            hint = f"Try it: taskqueue simulate --last 1h --set {each.limit}.max_concurrent={each.wanted}."
        elif not trial.helps:
            continue
        else:
            text += (
                f" {trial.value} would bring the wait of 95 % from {span(trial.before)} to {span(trial.after)}, says"
                f" the simulation of the last hour{'' if trial.agrees else ', which differs from what happened'}."
            )
            hint = f"Operation {trial.operation} shows it, and can apply it."
        hint += " Raise it only if the systems that the tasks use can bear the load."
        yield Advice(f"limit:{each.limit if each.scope != Scope.QUEUE else each.name}:{each.cap}", text, hint,
                     each.name if each.scope == Scope.QUEUE else "")  # fmt: skip


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
        when = f"since {timezone.localtime(since):%A %H:%M}" if since else "and no stored worker did"
        listed = ", ".join(names)
        text = f"{queue}: tasks wait that need {listed}; no worker offers that {when}."
        hint = f"Start manage.py runworker --capabilities {','.join(names)}, or cancel the tasks."
        yield Advice(f"capabilities:{queue}:{listed}", text, hint, queue)


def _bands() -> Iterator[Advice]:
    """Suggest lower priorities if most waiting tasks are urgent, so that the bands above normal order nothing."""
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
