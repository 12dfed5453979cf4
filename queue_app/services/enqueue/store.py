"""Store tasks in the caller's transaction; tell the index once it has committed.

Crash points: before COMMIT nothing exists; between COMMIT and the push the rows are
queued but not indexed, and the reconciler pushes them.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

from queue_app import conf, signals, tracing
from queue_app.core.events import Run
from queue_app.core.ids import uuid7s
from queue_app.core.lanes import score
from queue_app.core.records import Enqueued, Entry, NewTask
from queue_app.exceptions import IdempotencyConflict
from queue_app.services.enqueue import admission
from queue_app.services.enqueue.validate import check_call, check_payloads, check_task
from queue_app.services.notify import events
from queue_app.services.notify.index import OnLocated, push_on_commit
from queue_app.sql import insert
from queue_app.sql.database import alias, atomic
from queue_app.sql.insert import Place, Stored, TaskRow, TaskSpec
from queue_app.sql.insert_many import insert_many, insert_places

QueueKey = tuple[str, str]  # database alias, queue

#: Queues that this process has seen committed; only a name that is new to it costs a query.
_known_queues: set[QueueKey] = set()


def enqueue(new: NewTask, *, tell: bool = True, outside: bool = False, locate: bool = False) -> Enqueued:
    """Store one task; without ``tell`` the caller writes the event that it was accepted, or refused.

    With ``locate`` its place in the queue is asked for, unless the caller's transaction goes on.

    ``outside`` says that the task comes over the API or the request stream, where limits hold
    by default (``services.admission``). Returns the stored task, or with ``created=False`` the
    one that the same user enqueued in the last 24 hours (``RETENTION.IDEMPOTENCY_SECONDS``) with
    the same idempotency key, task type and parameters. Raises ``InvalidTaskData`` for what must
    not be stored, ``IdempotencyConflict`` for a key that was used for something else, and
    ``QueueFull`` or ``UserLimitExceeded`` where there is no room.
    """
    return _enqueue(check_task(new), tell=tell, outside=outside, locate=locate)


def enqueue_call(spec: TaskSpec, args: Sequence[Any], parameters: dict[str, Any]) -> Enqueued:
    """Store one call of a task that was checked (``check_spec``); as ``enqueue``."""
    return _enqueue(check_call(spec, args, parameters))


def _enqueue(row: TaskRow, *, tell: bool = True, outside: bool = False, locate: bool = False) -> Enqueued:
    with tracing.enqueueing([row]):
        queues = _ensure_queues([row])
        stored = admission.store_one(row, partial(_insert_one, row), outside=outside, write_events=tell)
        if stored is None:
            return _replayed(row)
        place: list[int | None] = []
        _announce(_told([stored], tell=tell), queues, on_located=place.append if locate else None)
    return Enqueued(row.id, stored.status, stored.created_at, queue_position=place[0] if place else None)


def enqueue_many(tasks: Iterable[NewTask], *, outside: bool = False) -> list[Enqueued]:
    """Store many tasks, all or nothing, and push them in one call; return results in order.

    Raises as ``enqueue`` does; the first bad task, or room for fewer than all, stops all.
    """
    return _store([check_task(new) for new in tasks], outside=outside)


def enqueue_calls[T](
    spec: TaskSpec, calls: Sequence[tuple[Sequence[Any], dict[str, Any]]], make: Callable[[list[Enqueued]], T]
) -> T:
    """Store one task for each (args, parameters) of a task that was checked; return what ``make`` makes of the results.

    Otherwise as ``enqueue_many``. Without an idempotency key ``make`` is called while PostgreSQL
    stores the tasks: what it raises stores nothing, and all of them are ``created``.
    """
    if spec.idempotency_key is not None:
        return make(_store([check_call(spec, *call) for call in calls]))
    places = [Place(task_id, spec) for task_id in uuid7s(len(calls))]
    if not places:
        return make([])
    with tracing.enqueueing(places):
        queues = _ensure_queues(places)
        write = partial(
            insert_places,
            places,
            partial(check_payloads, calls),
            lambda stored: (make(_results(stored)), _told(stored)),
        )
        made, told = admission.store(places, write, outside=False)
        _announce(told, queues)
    return made


def _store(rows: list[TaskRow], *, outside: bool = False) -> list[Enqueued]:
    if not rows:
        return []
    with tracing.enqueueing(rows):
        return _store_all(rows, outside=outside)


def _store_all(rows: list[TaskRow], *, outside: bool) -> list[Enqueued]:
    queues = _ensure_queues(rows)
    if all(row.spec.idempotency_key is None for row in rows):
        stored = admission.store(rows, partial(insert_many, rows), outside=outside)
        _announce(_told(stored), queues)
        return _results(stored)
    return admission.store(rows, partial(_store_with_keys, rows, queues), outside=outside)


def _results(stored: list[Stored]) -> list[Enqueued]:
    return [Enqueued(item.row.id, item.status, item.created_at) for item in stored]


def _insert_one(row: TaskRow, *, admitted: bool = False) -> Stored | None:
    """Store one task; return ``None`` when another one stands for its idempotency key.

    A key is only looked at when it is asked for again: a task that is older than
    ``RETENTION.IDEMPOTENCY_SECONDS`` gives it up to the new one, in one transaction, so that
    of all who ask at that moment one stores a task and the others find it.
    """
    stored = insert.insert_one(row, admitted=admitted)
    if stored is None:
        with atomic():
            if insert.free_key(row, conf.get().retention.idempotency_seconds):
                stored = insert.insert_one(row, admitted=admitted)
    return stored


def _store_with_keys(rows: list[TaskRow], queues: set[QueueKey], *, admitted: bool = False) -> list[Enqueued]:
    """Store tasks of which some carry idempotency keys: those one by one, the others by COPY."""
    with atomic():
        stored = insert_many([row for row in rows if row.spec.idempotency_key is None], admitted=admitted)
        results: dict[uuid.UUID, Enqueued] = {}
        for row in rows:
            if row.spec.idempotency_key is not None:
                item = _insert_one(row, admitted=admitted)
                if item is None:
                    results[row.id] = _replayed(row)
                else:
                    stored.append(item)
        results |= {result.id: result for result in _results(stored)}
        _announce(_told(stored), queues)
    return [results[row.id] for row in rows]


def _replayed(row: TaskRow) -> Enqueued:
    found = insert.find_by_key(row)
    if found is None:  # the first one was purged, or its transaction is not visible to this snapshot
        raise IdempotencyConflict("The idempotency key is being used by another transaction; try again.")
    task_id, status, created_at, same = found
    if not same:
        raise IdempotencyConflict(
            f"The idempotency key {row.spec.idempotency_key!r} was used for another task or other parameters."
        )
    return Enqueued(task_id, status, created_at, created=False)


class _Told(NamedTuple):
    """What is told of stored tasks: to the index their places and events, to listeners a queue and how many."""

    entries: list[Entry]
    events: Sequence[Run]
    queue: str
    tasks: int


def _told(stored: list[Stored], *, tell: bool = True) -> _Told:
    queue = stored[0].row.spec.queue if stored else ""
    return _Told(_entries(stored), events.of_stored(stored) if tell else (), queue, len(stored))


def _announce(told: _Told, queues: set[QueueKey], *, on_located: OnLocated | None = None) -> None:
    note = partial(_known_queues.update, queues) if queues else None
    push_on_commit(told.entries, note, events=told.events, on_located=on_located)
    if told.tasks and signals.tasks_enqueued.has_listeners():
        signals.tasks_enqueued.send(None, queue=told.queue, count=told.tasks)


def _entries(stored: list[Stored]) -> list[Entry]:
    """Return the places of the queued ones; tasks of one call mostly share instant and band."""
    entries: list[Entry] = []
    instant, band, at = None, None, 0.0
    for row, _created_at, queued_at in stored:
        if queued_at is None:
            continue
        if queued_at is not instant or row.spec.priority != band:
            instant, band = queued_at, row.spec.priority
            at = score(band, instant)
        entries.append(Entry(row.spec.lane, at, row.id))
    return entries


def _ensure_queues(rows: Sequence[Place | TaskRow]) -> set[QueueKey]:
    """Create queues that are named for the first time, with the defaults; return those that were looked up."""
    database = alias()
    if len(rows) == 1 and (database, rows[0].spec.queue) in _known_queues:
        return set()
    fresh = {(database, row.spec.queue) for row in rows} - _known_queues
    for _database, name in sorted(fresh):  # in the same order by everybody, or two new queues could deadlock
        insert.ensure_queue(name)
    return fresh


def forget_known_queues() -> None:
    """Look every queue up again at its next use (tests empty the tables)."""
    _known_queues.clear()
