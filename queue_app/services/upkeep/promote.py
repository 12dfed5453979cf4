"""Promote tasks that have waited long, and queue scheduled tasks that are due.

A promotion moves a task to a higher band in the index; its row stays as it is. Only the row knows a task's own band,
and with it the age of the next promotion. So each rise (from a task's own band to a higher one) is a sweep over the
queued rows of that band, oldest first. A sweep saves where it stopped: a run reads the rows that have reached the age
since the last run, and a few more.

A task that enters the index later (by a push, a return or a rebuild) is put at the place for its age, so a sweep never
goes back. Such a rise is counted, but no event is published.

Crash points: before the index moved a page, nothing has happened; before the progress was saved, the
page is swept again, which moves nothing. Two runs at once do the same work twice.
"""

import time
import uuid
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from queue_app import conf, signals
from queue_app.core.events import EventName, Occasion, occasion_of
from queue_app.core.priorities import PROMOTED, Band, Risen, Thresholds, rises, steps_of
from queue_app.core.records import TaskRef
from queue_app.core.states import Status
from queue_app.index import Index, get_index
from queue_app.models import PriorityPolicy
from queue_app.services.advance import advance
from queue_app.services.notify import events
from queue_app.services.notify.index import notify_index
from queue_app.services.upkeep import jobs
from queue_app.sql import waiting
from queue_app.sql.database import alias, atomic, clock
from queue_app.sql.snapshot import Cursor
from queue_app.telemetry import transition_log

JOB = "promote"
BUDGET_SECONDS = 5.0
DUE_BATCH = 1000
#: Maximum number of tasks per run with an event: more would push all other events out of the stream.
MAX_EVENTS = 10_000
#: Time span that the next run sweeps again, because the index's clock may be behind the database's.
OVERLAP_SECONDS = 30.0

type Step = tuple[Band, Band]  # from, to


@dataclass(slots=True)
class Promotion:
    """The steps of one run; ``complete`` when no aged task is left."""

    steps: Counter[Step] = field(default_factory=Counter)
    complete: bool = True
    published: int = 0  # tasks with an event

    @property
    def total(self) -> int:
        return self.steps.total()

    def add(self, risen: Sequence[tuple[TaskRef, Risen]]) -> None:
        """Count the steps and publish their events, up to ``MAX_EVENTS`` of the run."""
        self.steps += steps_of(one for _, one in risen)
        published = risen[: MAX_EVENTS - self.published]
        self.published += len(published)
        events.publish((_occasion(task, one), task.id) for task, one in published)


@dataclass(slots=True)
class _Sweep:
    """One rise from one band, of the tasks that were queued by ``until``."""

    name: str
    band: Band
    until: datetime
    cursor: Cursor | None
    done: bool = False

    def next_page(self, index: Index, limit: int) -> list[tuple[TaskRef, Risen]]:
        """Promote the next page; return the tasks that rose."""
        page = waiting.aged_page(self.band, self.cursor, self.until, limit)
        risen = {one.task_id: one for one in index.promote(page)}
        if len(page) == limit:
            self.cursor = (page[-1].queued_at, page[-1].id)
        else:
            self.cursor = _overlap(self.until)
            self.done = True
        return [(task, risen[task.id]) for task in page if task.id in risen]


def _overlap(until: datetime) -> Cursor:
    """Return where the next sweep starts after one that ended at ``until``."""
    return until - timedelta(seconds=OVERLAP_SECONDS), uuid.UUID(int=0)


def promote(*, budget: float = BUDGET_SECONDS, batch: int = 0) -> Promotion:
    """Let every aged task rise to its effective band, for at most about ``budget`` seconds.

    Each rise has at least one batch of ``batch`` tasks, by default ``SCHEDULER.PROMOTE_BATCH``. While the index is
    being rebuilt there is nothing to do: the rebuild puts every task where it belongs. Raises ``IndexUnavailable``.
    """
    index = get_index()
    promotion = Promotion()
    if index.way == conf.ROWS or index.generation().state != "ready":  # a claim from rows reads ages itself
        return promotion
    deadline = time.monotonic() + budget
    batch = batch or conf.get().scheduler.promote_batch
    thresholds = PriorityPolicy.thresholds(alias())
    index.set_thresholds(thresholds)  # in case the notification of an edit was lost; the sweeps rely on it
    pending = sweeps = _sweeps(thresholds, jobs.progress(JOB))
    try:
        while pending:
            for sweep in pending:
                promotion.add(sweep.next_page(index, batch))
            pending = [sweep for sweep in pending if not sweep.done]
            if pending and time.monotonic() >= deadline:
                promotion.complete = False
                break
    finally:
        cursors = {sweep.name: sweep.cursor for sweep in sweeps if sweep.cursor}
        jobs.save_progress(JOB, {name: [at.isoformat(), task_id.hex] for name, (at, task_id) in cursors.items()})
        if promotion.steps:
            signals.tasks_promoted.send(None, steps=dict(promotion.steps), complete=promotion.complete)
    return promotion


def _sweeps(thresholds: Thresholds, known: dict[str, list[str]]) -> list[_Sweep]:
    """Return a sweep for each rise, continuing where the last run stopped."""
    now = clock()
    found: list[_Sweep] = []
    for band in PROMOTED:
        for rise in rises(band, thresholds):
            name = f"{band.label}:{rise.to.label}"
            until = now - timedelta(seconds=rise.after)
            cursor: Cursor | None = None
            if name in known:
                cursor = datetime.fromisoformat(known[name][0]), uuid.UUID(known[name][1])
                if cursor[0] > until:  # the database's clock went back
                    cursor = _overlap(until)
            found.append(_Sweep(name, band, until, cursor))
    return found


def _occasion(task: TaskRef, risen: Risen) -> Occasion:
    occasion = occasion_of(EventName.PROMOTED, task, Status.QUEUED)
    return occasion._replace(details=("from", risen.left.label, "to", risen.to.label))


def make_due(*, limit: int = DUE_BATCH, recent: bool = False) -> int:
    """Queue at most ``limit`` tasks that are due, or became due ``recent``ly, earliest first; return how many.

    Safe to run twice at once: rows that another process has locked are skipped. After a crash between row and
    index the reconciler pushes the queued tasks.
    """
    with atomic():
        tasks = waiting.make_due(limit, recent=recent)
        of_workflow = [task.id for task in tasks if task.workflow_id is not None]
        held = advance(dict.fromkeys(of_workflow, Status.QUEUED)) if of_workflow else set[uuid.UUID]()
        tasks = [task for task in tasks if task.id not in held]
    if tasks:
        notify_index(Index.push, "push", tasks)
        if transition_log.enabled():
            transition_log.log_due(tasks)
        events.count({"due": len(tasks)})
    return len(tasks)
