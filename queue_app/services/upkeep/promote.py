"""Promote tasks that have waited long: they rise in the index, their rows stay as they are.

The index cannot tell which tasks of a band are of that band and which rose to it, and the
two go on at different ages. The rows can. So each rise (a band of one's own, and the band
it leads to) is a sweep over the queued rows of that band, oldest first, which remembers
where it stopped: a run reads those that came of age since the last one, and a little more.

Whatever enters the index later (a push, a task given back, a rebuild) is put where its age
has brought it by then, so a sweep need never go back; such a rise is counted, and no event
tells of it. Crash points: before the index moved
a page, nothing has happened; before the progress was noted, the page is swept again, which
moves nothing. Two runs at once do the same twice.
"""

from __future__ import annotations

import time
import uuid
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from queue_app import signals
from queue_app.core.events import EventName, Occasion, occasion_of
from queue_app.core.priorities import Band
from queue_app.core.promotion import PROMOTED, Risen, Thresholds, rises, steps_of
from queue_app.core.records import TaskRef
from queue_app.core.states import Status
from queue_app.index import Index, get_index
from queue_app.models import PriorityPolicy
from queue_app.services.notify import events, transition_log
from queue_app.services.notify.index import notify_index
from queue_app.services.upkeep import jobs
from queue_app.sql import waiting
from queue_app.sql import waiting as rows
from queue_app.sql.comparison import Cursor
from queue_app.sql.database import alias, clock

JOB = "promote"
BUDGET_SECONDS = 5.0
BATCH = 500
#: So many tasks a run tells of at most: more would push everything else out of the stream of events.
MAX_TOLD = 10_000
#: So much is swept again by the next run: the index's clock may be behind the database's.
AGAIN_SECONDS = 30.0

Step = tuple[Band, Band]


@dataclass(slots=True)
class Promotion:
    """What a run moved, by (from, to); ``complete`` when nothing aged is left."""

    steps: Counter[Step] = field(default_factory=Counter)
    complete: bool = True
    told: int = 0  # tasks of which an event told

    @property
    def total(self) -> int:
        """All steps."""
        return self.steps.total()

    def note(self, risen: Sequence[tuple[TaskRef, Risen]]) -> None:
        """Count what rose, and tell of it as long as the run has not told of too many."""
        self.steps += steps_of(one for _, one in risen)
        to_tell = risen[: MAX_TOLD - self.told]
        self.told += len(to_tell)
        events.publish((_occasion(task, one), task.id) for task, one in to_tell)


@dataclass(slots=True)
class _Sweep:
    """One rise of the tasks of one band: those queued by ``until`` are old enough for it."""

    name: str
    band: Band
    until: datetime
    cursor: Cursor | None
    done: bool = False

    def next_page(self, index: Index, limit: int) -> list[tuple[TaskRef, Risen]]:
        """Let the next tasks rise; return those that did."""
        page = rows.aged_page(self.band, self.cursor, self.until, limit)
        risen = {one.task_id: one for one in index.promote(page)}
        if len(page) == limit:
            self.cursor = (page[-1].queued_at, page[-1].id)
        else:
            self.cursor = (self.until - timedelta(seconds=AGAIN_SECONDS), uuid.UUID(int=0))
            self.done = True
        return [(task, risen[task.id]) for task in page if task.id in risen]


def promote(*, budget: float = BUDGET_SECONDS, batch: int = BATCH) -> Promotion:
    """Let every aged task rise to its effective band, for at most about ``budget`` seconds.

    At least one batch of each rise is dealt with. While the index is being rebuilt there is
    nothing to do: the rebuild puts everything where it belongs. Raises ``IndexUnavailable``.
    """
    index = get_index()
    promotion = Promotion()
    if index.generation().state != "ready":
        return promotion
    deadline = time.monotonic() + budget
    thresholds = PriorityPolicy.thresholds(alias())
    index.set_thresholds(thresholds)  # an edit whose hint was lost; the sweeps go by what the index knows
    pending = sweeps = _sweeps(thresholds, jobs.progress(JOB))
    try:
        while pending:
            for sweep in pending:
                promotion.note(sweep.next_page(index, batch))
            pending = [sweep for sweep in pending if not sweep.done]
            if pending and time.monotonic() >= deadline:
                promotion.complete = False
                break
    finally:
        jobs.note_progress(JOB, {sweep.name: _dump(sweep.cursor) for sweep in sweeps if sweep.cursor})
        if promotion.steps:
            signals.tasks_promoted.send(None, steps=dict(promotion.steps), complete=promotion.complete)
    return promotion


def _sweeps(thresholds: Thresholds, known: dict[str, list[str]]) -> list[_Sweep]:
    """Return a sweep for each rise, each from where the last run stopped."""
    now = clock()
    found: list[_Sweep] = []
    for band in PROMOTED:
        for rise in rises(band, thresholds):
            name = f"{band.label}:{rise.to.label}"
            cursor = _load(known[name]) if name in known else None
            found.append(_Sweep(name, band, now - timedelta(seconds=rise.after), cursor))
    return found


def _occasion(task: TaskRef, risen: Risen) -> Occasion:
    occasion = occasion_of(EventName.PROMOTED, task, Status.QUEUED)
    return occasion._replace(details=("from", risen.left.label, "to", risen.to.label))


def _dump(cursor: Cursor) -> list[str]:
    return [cursor[0].isoformat(), cursor[1].hex]


def _load(value: list[str]) -> Cursor:
    return datetime.fromisoformat(value[0]), uuid.UUID(value[1])


DUE_BATCH = 1000


def make_due(*, limit: int = DUE_BATCH) -> int:
    """Queue at most ``limit`` tasks that are due, earliest first; return how many.

    Safe to run twice at once: rows that another runner holds are skipped. After a crash
    between row and index the reconciler pushes what was queued.
    """
    tasks = waiting.make_due(limit)
    if tasks:
        notify_index(lambda index: index.push(tasks), "push")
        if transition_log.enabled():
            transition_log.log_due(tasks)
        events.count({"due": len(tasks)})
    return len(tasks)


def seconds_until_due() -> float | None:
    """Return the seconds until the next scheduled task is due; ``None`` when none is scheduled."""
    return waiting.seconds_until_due()
