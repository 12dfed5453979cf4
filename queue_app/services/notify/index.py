"""Tell the index what was committed. A hint, never the delivery.

A process may die between COMMIT and the hint, or Redis may be away: the rows are there,
and the reconciler finds them by state. So a hint that fails is logged, not raised, and
after a failure further hints are held back for a moment instead of each waiting for a
server that does not answer.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

from django.db import transaction

from queue_app import signals
from queue_app.core.events import Run
from queue_app.core.records import Entry
from queue_app.exceptions import IndexUnavailable
from queue_app.index import Index, get_index
from queue_app.services.notify import transition_log
from queue_app.sql.database import alias, connection

#: Wants to know the place that the only entry has in its queue then.
type Asker = Callable[[int | None], object]

#: Seconds without hints after one failed, at least.
HOLD_BACK_SECONDS = 2.0
#: The same as a multiple of the time that the failure took: callers spend a fifth of theirs waiting at most.
HOLD_BACK_FACTOR = 4


class Breaker:
    """Holds hints back for a moment after one failed."""

    def __init__(self) -> None:
        self.closed_from = 0.0

    @property
    def is_open(self) -> bool:
        """Whether hints are held back now."""
        return time.monotonic() < self.closed_from

    def trip(self, waited: float = 0.0) -> None:
        """Hold hints back from now on; longer when whoever found out had ``waited`` for it (s)."""
        self.closed_from = time.monotonic() + max(HOLD_BACK_SECONDS, HOLD_BACK_FACTOR * waited)

    def reset(self) -> None:
        """Let hints pass again."""
        self.closed_from = 0.0


breaker = Breaker()
_log = logging.getLogger("taskqueue")


def notify_index(operation: Callable[[Index], object], name: str) -> bool:
    """Run ``operation`` on the index; return false, and log, when the index cannot be reached."""
    if breaker.is_open:
        return False
    began = time.monotonic()
    try:
        operation(get_index())
    except IndexUnavailable as error:
        breaker.trip(time.monotonic() - began)
        signals.index_unreachable.send(None, operation=name, error=error)
        return False
    return True


class PushHook:
    """An ``on_commit`` hook that announces and pushes all tasks that one transaction stored, in one call."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.events: list[Run] = []
        self.notes: list[Callable[[], object]] = []
        self.asked: list[Asker] = []
        self.ran = False  # a test may run the hooks of a transaction that goes on

    def __call__(self) -> None:
        """Push them."""
        self.ran = True
        for note in self.notes:
            note()
        _push(self.entries, self.events, self.asked)


def push_on_commit(
    entries: Sequence[Entry],
    note: Callable[[], object] | None = None,
    *,
    events: Sequence[Run] = (),
    place: Asker | None = None,
) -> None:
    """Push tasks, given by their places, once the caller's transaction has committed; at once when there is none.

    Tasks of one transaction are gathered in one hook, as long as no savepoint lies between
    them that could be rolled back alone. ``note`` is called with the push, whether it arrives
    or not; ``events`` are told before it. ``place`` is called with the place that a task has then,
    where it is the only one: asked in the same round trip.
    """
    if not (entries or events):
        return
    database = connection()
    if not database.in_atomic_block and database.get_autocommit():
        _push_now(entries, note, events, [place] if place else ())
        return
    notes = [note] if note else []
    if database.run_on_commit:
        last: tuple[Any, ...] = database.run_on_commit[-1]
        savepoints, hook, _robust = last
        if isinstance(hook, PushHook) and not hook.ran and savepoints == set(database.savepoint_ids):
            hook.entries.extend(entries)
            hook.events.extend(events)
            hook.notes.extend(notes)
            return
    hook = PushHook()
    hook.entries.extend(entries)
    hook.events.extend(events)
    hook.notes.extend(notes)
    hook.asked.extend([place] if place else [])
    transaction.on_commit(hook, using=alias(), robust=True)


def _push_now(
    entries: Sequence[Entry], note: Callable[[], object] | None, events: Sequence[Run], asked: Sequence[Asker]
) -> None:
    """Push what is committed; like a robust hook it raises nothing."""
    try:
        if note:
            note()
        _push(entries, events, asked)
    except Exception:  # noqa: BLE001
        _log.exception("tasks were stored, and could not be told to the index; the reconciler will find them")


def _push(entries: Sequence[Entry], events: Sequence[Run], asked: Sequence[Asker]) -> None:
    if events and transition_log.enabled():
        transition_log.told(events)
    if asked and len(entries) == 1:
        notify_index(lambda index: asked[0](index.post_and_locate(entries[0], events)), "push")
    elif len(entries) <= 1 and len(events) <= 1:
        notify_index(lambda index: index.post_entries(entries, events), "push")
    else:
        notify_index(lambda index: index.announce_entries(entries, events), "push")


def on_commit(operation: Callable[[Index], object], name: str) -> None:
    """Run ``operation`` on the index once the caller's transaction has committed."""
    transaction.on_commit(lambda: notify_index(operation, name), using=alias(), robust=True)
