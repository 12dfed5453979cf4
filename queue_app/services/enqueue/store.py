"""Store tasks in the caller's transaction, and push them to the index once it has committed.

Crash points: before COMMIT nothing exists; between COMMIT and the push the rows are
queued but not indexed, and the reconciler pushes them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any, Final

from django.tasks.base import DEFAULT_TASK_QUEUE_NAME

from queue_app import codecs, conf, registry
from queue_app.core.counters import collector_paused
from queue_app.core.ids import uuid7s
from queue_app.core.records import Enqueued, NewTask, TaskRow, TaskSpec
from queue_app.core.signatures import check_arguments, check_types
from queue_app.core.states import Status
from queue_app.encryption import sealed_calls
from queue_app.exceptions import IdempotencyConflict, InvalidTaskData, UnknownQueue, is_typo
from queue_app.hooks import before_enqueue, has_metadata
from queue_app.models import Queue, Task
from queue_app.models.queue import MAX_COMPARED
from queue_app.registry import AnyTask
from queue_app.services.enqueue.admission import Write, store_if_room, store_unique
from queue_app.services.enqueue.validate import check_call, check_payloads, check_spec, check_task, check_task_type
from queue_app.services.notify import events
from queue_app.services.read.inspect import get_task, position_of
from queue_app.sql import insert
from queue_app.sql.admission import Defaults, insert_if_room, taken_keys
from queue_app.sql.connections import missing_tables_explained
from queue_app.sql.database import alias, atomic, clock, is_in_transaction, once_more_after_deadlock
from queue_app.sql.insert import STEP, LimitApplies, insert_calls, insert_many, instants
from queue_app.sql.search import traces
from queue_app.telemetry import tracing

#: Remembers queues that were looked up, once they are committed; ``None`` if there is none.
type OnPush = Callable[[], object] | None
type BeforePush = Callable[[Enqueued], object]

#: (database alias, queue) that are committed and known to this process. Only an unknown name costs a query.
_known_queues: Final[set[tuple[str, str]]] = set()
#: Undeclared queues that this process has warned about.
_undeclared: Final[set[str]] = set()
_log = logging.getLogger("taskqueue")


def enqueue(new: NewTask, *, outside: bool = False) -> Enqueued:
    """Store one task, a ``queue_app.core.records.NewTask``; return it, or the one that already has its key.

    Options that it leaves open are those of the function's decorator, if a task module has the function.
    Tasks from ``outside`` (API, request stream) are limited by default (``services.enqueue.admission``). Returns
    the stored task, or with ``created=False`` the task that the same user enqueued in the last 24 hours
    (``RETENTION.IDEMPOTENCY_SECONDS``) with the same idempotency key, task type and parameters. Raises
    ``InvalidTaskData`` for a task that must not be stored, ``IdempotencyConflict`` for a key that was used
    for another call, and ``QueueFull`` or ``UserLimitExceeded`` if there is no room.
    """
    return store_one(check_task(new, _declared(new)), outside=outside)


def _declared(new: NewTask) -> AnyTask | None:
    """Return the task whose decorator has the open options; none for a copy, which has those of its original."""
    return registry.of_task_modules(check_task_type(new.task_type)) if new.metadata is None else None


def store_one(
    row: TaskRow, *, outside: bool = False, before_push: BeforePush | None = None, locate: bool = False
) -> Enqueued:
    """Store a checked task, like ``enqueue``.

    With ``before_push`` the caller writes the event that the task was accepted or refused. It is called with the task
    once that is committed, before any worker can know of it. With ``locate`` the index is asked for the task's position
    in the queue, unless the caller's transaction continues.
    """
    row = before_enqueue(row)
    positions: list[int | None] = []
    on_located = positions.append if locate else None
    store = partial(_store_one, outside=outside, before_push=before_push, on_located=on_located)
    if row.spec.unique is None:
        stored = store(row)
    else:
        (stored,) = _store_unique([row], lambda rows: [*map(store, rows)], outside=outside)
    return stored._replace(queue_position=positions[0]) if positions else stored


def _store_one(
    row: TaskRow, *, outside: bool, before_push: BeforePush | None, on_located: Callable[[int | None], object] | None
) -> Enqueued:
    stored, write_events = None, before_push is None
    on_push = ensure_queues([row])
    with tracing.enqueueing([row]) as sent:
        if outside and not is_in_transaction():  # one round trip, if there is room
            stored = insert_if_room(row, sent, Defaults.of_outside(is_own=True))
        if stored is None:
            stored = store_rows([row], partial(_insert_one, row, sent), outside=outside, write_events=write_events)
        if stored is None:
            return _replayed(row)
        try:
            if before_push is not None:
                before_push(stored)
        finally:
            events.announcement([stored], on_push, write_events=write_events, on_located=on_located)()
    return stored


def _store_unique(
    rows: list[TaskRow], store: Callable[[list[TaskRow]], list[Enqueued]], *, outside: bool
) -> list[Enqueued]:
    return once_more_after_deadlock(lambda: store_unique(rows, store, outside=outside))


def enqueue_many(tasks: Iterable[NewTask]) -> list[Enqueued]:
    """Store many tasks, all or none, and push them in one call; return results in order.

    Options are found as by ``enqueue``. Raises the same errors, for the first invalid task, or if there is no room for
    all.
    """
    return store_many([check_task(new, _declared(new)) for new in tasks])


def store_many(rows: list[TaskRow], *, outside: bool = False) -> list[Enqueued]:
    """Store many checked tasks, like ``enqueue_many``."""
    rows = [before_enqueue(row) for row in rows]
    if any(row.spec.unique is not None for row in rows):
        return _store_unique(rows, partial(_store_many, outside=outside), outside=outside)
    return _store_many(rows, outside=outside)


def _store_many(rows: list[TaskRow], *, outside: bool) -> list[Enqueued]:
    if not rows:
        return []
    with tracing.enqueueing(rows) as sent:
        on_push = ensure_queues(rows)
        if any(row.spec.idempotency_key is not None for row in rows):
            write_all = partial(_insert_with_keys, rows, on_push, sent)
            return once_more_after_deadlock(lambda: store_rows(rows, write_all, outside=outside))
        stored = store_rows(rows, partial(insert_many, rows, sent), outside=outside)
        announce(stored, on_push)
    return stored


def enqueue_calls[T](
    spec: TaskSpec, calls: Sequence[tuple[Sequence[Any], dict[str, Any]]], make: Callable[[list[Enqueued]], T]
) -> T:
    """Store one task for each (args, parameters) of a checked task; return the result of ``make``.

    Otherwise as ``enqueue_many``. Without an idempotency key, a unique rule or hooks, ``make`` is called while
    PostgreSQL stores the tasks: if it raises, nothing is stored, and all tasks are ``created``.
    """
    if spec.idempotency_key is not None or spec.unique is not None or has_metadata(spec.task_type):
        return make(store_many([check_call(spec, *call) for call in calls]))
    if not calls:
        return make([])
    with (
        collector_paused(len(calls)),
        tracing.enqueueing(rows := [TaskRow(task_id, spec) for task_id in uuid7s(len(calls))]) as sent,
    ):
        on_push = ensure_queues(rows)
        write = partial(
            insert_calls,
            rows,
            sent,
            lambda: sealed_calls(spec.task_type, check_payloads(calls)),
            lambda stored: (make(stored), events.announcement(stored, on_push)),
        )
        made, announce = store_rows(rows, write)
        announce()
    return made


def store_rows[T](rows: Sequence[TaskRow], write: Write[T], *, outside: bool = False, write_events: bool = True) -> T:
    """Store tasks by ``write``, under the limits that apply."""
    if not outside:
        try:
            return write()
        except LimitApplies:
            pass
    return store_if_room(rows, write, outside=outside, write_events=write_events)


def _insert_one(
    row: TaskRow, sent: str | None, *, admitted: bool = False, at: datetime | None = None
) -> Enqueued | None:
    """Store one task; return ``None`` when another task holds its idempotency key.

    The age of a key matters only when the key is used again: a task older than
    ``RETENTION.IDEMPOTENCY_SECONDS`` gives its key to the new task, in one transaction, so that one
    of several concurrent callers stores a task and the others find it.
    """
    stored = insert.insert_one(row, sent, admitted=admitted, at=at)
    if stored is None:
        with atomic():
            if insert.free_key(row, conf.get().retention.idempotency_seconds):
                stored = insert.insert_one(row, sent, admitted=admitted, at=at)
    return stored


def _insert_with_keys(
    rows: list[TaskRow], on_push: OnPush, sent: str | None, *, admitted: bool = False
) -> list[Enqueued]:
    """Store and announce tasks: one by one if they have an idempotency key, the others by COPY.

    The keys are taken in their own order, so that two callers with the same keys do not deadlock. The tasks are queued
    in the order of ``rows`` even so.
    """
    with atomic():
        stored = insert_many([row for row in rows if row.spec.idempotency_key is None], sent, admitted=admitted)
        results = {item.id: item for item in stored}
        keyed = [row for row in rows if row.spec.idempotency_key is not None]
        times = {row.id: at for row, at in zip(keyed, instants(clock(), STEP), strict=False)}
        for row in sorted(keyed, key=lambda row: (row.spec.user, row.spec.idempotency_key)):
            results[row.id] = _insert_one(row, sent, admitted=admitted, at=times[row.id]) or _replayed(row)
        stored += [item for row in keyed if (item := results[row.id]).created]
        announce(stored, on_push)
    return [results[row.id] for row in rows]


def _replayed(row: TaskRow) -> Enqueued:
    found = insert.find_by_key(row)
    if found is None:  # the first task was purged, or its transaction is invisible to this snapshot
        raise IdempotencyConflict("The idempotency key is being used by another transaction; try again.")
    task_id, status, created_at, same = found
    if not same:
        raise IdempotencyConflict(
            f"The idempotency key {row.spec.idempotency_key!r} was used for another task or other parameters."
        )
    return Enqueued(task_id, row.spec, status, created_at, created=False)


def announce(stored: Sequence[Enqueued], on_push: OnPush) -> None:
    """Notify the index and event listeners of stored tasks, once the transaction has committed."""
    events.announcement(stored, on_push)()


def ensure_queues(rows: Sequence[TaskRow]) -> OnPush:
    """Create new queues with the defaults; return what remembers the queues that were looked up."""
    database = conf.get().database_alias
    if len(rows) == 1 and (database, rows[0].spec.queue) in _known_queues:
        return None
    fresh = {(database, row.spec.queue) for row in rows} - _known_queues
    for _database, name in sorted(fresh):  # sorted, because two callers with the same new queues could deadlock
        with missing_tables_explained():
            _check_declared(name)
            if insert.ensure_queue(name) and not conf.get().queues:  # else the list says what is a typing error
                _report_similar(name)
    return partial(_known_queues.update, fresh) if fresh else None


def _report_similar(name: str) -> None:
    """Warn if the name of a new queue looks like a typing error: it differs by case or a letter from another's."""
    others = Queue.objects.using(alias()).exclude(pk=name).values_list("name", flat=True)[:MAX_COMPARED]
    similar = [repr(other) for other in others if is_typo(name, other)]
    if similar:
        _log.warning(
            "The queue %r is new, and its name is almost that of %s. If that is a typing error, correct the"
            " queue_name, and see that a worker serves the tasks that already wait in %r.",
            name, " and ".join(similar[:3]), name,
        )  # fmt: skip


def _check_declared(name: str) -> None:
    """Warn of a queue that the project does not declare, once per process, or raise ``UnknownQueue``."""
    settings = conf.get()
    if not settings.queues or name in settings.queues or name == DEFAULT_TASK_QUEUE_NAME:
        return
    error = UnknownQueue(name, settings.queues, why="It is not in TASKQUEUE QUEUES, and staff have not made it.")
    if settings.strict_queues:
        if not Queue.objects.using(alias()).filter(pk=name).exists():
            raise error
    elif name not in _undeclared:
        _undeclared.add(name)
        _log.warning("%s", error)


# Submit tasks by the names of their types: for the API, the command line, Celery and the request stream.
#
# The type is only looked up among the registered tasks, and options that the caller leaves open
# are those of the registered task.


def submit(new: NewTask, *, before_push: BeforePush | None = None) -> Enqueued:
    """Store a task by the name of its type, and return it with its position in the queue.

    A replayed task is described as it is now; it may wait in another queue than the caller asked for.
    With ``before_push`` the caller writes the event that the task was accepted. Raises ``InvalidTaskData`` for a
    task that must not be stored (``WrongArguments`` with a signature, ``UnknownTaskType`` and ``UnknownQueue`` with
    near matches), and the other errors of ``enqueue``.
    """
    row = _row(new, set())
    stored = store_one(row, outside=True, before_push=before_push, locate=True)
    if stored.created:
        return stored
    task = get_task(Task.objects.all(), stored.id)
    spec = replace(row.spec, queue=task.queue, priority=task.priority, capabilities=tuple(task.capabilities))
    position, sent = position_of(task), traces([task.id]).get(task.id)
    return stored._replace(spec=spec, status=Status(task.status), queue_position=position, sent_trace=sent)


def submit_many(tasks: Sequence[NewTask]) -> list[Enqueued]:
    """Store many tasks by the names of their types, all or nothing; return them in order.

    Raises the same errors as ``submit``; an ``InvalidTaskData`` names the item, such as ``tasks[3].priority``.
    """
    rows: list[TaskRow] = []
    keys: set[str] = set()
    queues: set[str] = set()
    for position, new in enumerate(tasks):
        try:
            rows.append(_row(new, queues))
            _check_repetition(rows[-1].spec.idempotency_key, keys)
        except InvalidTaskData as error:
            error.field = f"tasks[{position}].{error.field}"
            raise
    return store_many(rows, outside=True)


def _row(new: NewTask, queues: set[str]) -> TaskRow:
    """Return the checked task; refuse a queue that neither staff nor the task itself have named.

    ``queues`` collects the queues that exist, so that each is looked up once.
    """
    registered = registry.get_for_caller(check_task_type(new.task_type))
    spec = check_spec(new, registered)
    if spec.queue != registered.queue_name and spec.queue not in queues:
        if not Queue.objects.filter(pk=spec.queue).exists():
            raise Queue.unknown(spec.queue, registered.queue_name)
        queues.add(spec.queue)
    row, settings = check_call(spec, new.args, new.parameters), conf.get()
    if settings.codecs:
        codecs.check_forms([*new.args], "args")
        for name, value in new.parameters.items():
            codecs.check_forms(value, f"parameters.{name}")
    check_arguments(registered, new.args, new.parameters)
    if settings.typed_arguments:
        check_types(registered, *codecs.decode_call([*new.args], new.parameters))
    return row


def check_whole(user: str, keys: Sequence[str], following: str) -> None:
    """Raise ``IdempotencyConflict`` if the keys of one request were used for a request with fewer or more tasks.

    ``following`` is the key that one more task would have.
    """
    pairs = [(user, key) for key in (*keys, following)]
    taken = taken_keys(pairs, conf.get().retention.idempotency_seconds)
    if taken and taken != set(pairs[:-1]):
        raise IdempotencyConflict("The idempotency key was used for a request with other tasks.")


def _check_repetition(key: str | None, keys: set[str]) -> None:
    if key is None:
        return
    if key in keys:
        raise InvalidTaskData(
            "idempotency_key", "Another task of this request has the same key.", code="duplicate_in_batch"
        )
    keys.add(key)
