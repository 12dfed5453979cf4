"""Admit tasks to queues that have room, and expire tasks that are stale.

Two limits apply: ``max_length`` of a queue, and ``max_pending_per_user``. Limits that a queue sets itself apply to
every caller, as does ``max_pending_per_user`` of the runtime settings. Tasks from outside (API, request stream) also
have default limits: ``max_length`` of the runtime settings, else ``ADMISSION.MAX_LENGTH``, and
``ADMISSION.MAX_PENDING_PER_USER``.

``max_length`` counts waiting tasks, scheduled or queued. ``max_pending_per_user`` counts all pending tasks of a user:
in one queue if that queue sets the limit, else in all queues together that set none. Only submissions are limited; a
retry, a returned task and a replay always find their place.

Submitters never exceed a limit: the submitters of one queue or of one user take turns until their transactions end
(``sql.admission``). In a long transaction, enqueue late, because other submitters wait. Two transactions that enqueue
to the same two queues in different orders may deadlock; PostgreSQL ends one of them with an error. Without a limit,
code that enqueues takes no lock and counts nothing.

A full queue first expires its stale tasks, whichever limit it has reached. Tasks are stale when they have waited longer
than the queue's ``stale_after_seconds``, else ``ADMISSION.STALE_SECONDS``.

Crash points: everything is one transaction, so a process that dies in between has admitted nothing. Expiring stale
tasks is a transition of its own, before that transaction.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import count
from typing import Final, Protocol

from queue_app import conf, signals
from queue_app.core.events import EventName, occasion_of
from queue_app.core.records import Enqueued, TaskRow
from queue_app.core.states import Status
from queue_app.exceptions import IsolationTooStrict, LimitExceeded, QueueFull, UserLimitExceeded
from queue_app.services.advance import advance_ended
from queue_app.services.enqueue.callbacks import enqueue_callbacks
from queue_app.services.notify import events
from queue_app.services.notify.index import remove_on_commit, send_on_commit
from queue_app.sql import admission as rows
from queue_app.sql import waiting
from queue_app.sql.admission import Defaults, QueueLimits, UserScope
from queue_app.sql.database import atomic, is_in_transaction

#: Maximum number of attempts of a submission to make room; other submitters may take each place that it frees.
MAX_SWEEPS: Final = 20
#: Older ages mean never: PostgreSQL cannot subtract them from a date.
MAX_SECONDS: Final = 10 * 365 * 86_400.0
#: Number of tasks that one statement expires.
BATCH: Final = 500
#: Maximum number of batches of one queue per run; the next run continues.
MAX_BATCHES: Final = 20


class Write[T](Protocol):
    """Stores tasks; raises ``LimitApplies`` if limits are set and ``admitted`` is false."""

    def __call__(self, *, admitted: bool = False) -> T:
        """Store them."""


def store_one_if_room(row: TaskRow, write: Write[Enqueued | None], *, write_events: bool = True) -> Enqueued | None:
    """Store one task from outside like ``store_if_room``, in one round trip if possible."""
    if not is_in_transaction() and (stored := rows.insert_if_room(row, Defaults.of_outside(is_own=True))) is not None:
        return stored
    return store_if_room([row], write, outside=True, write_events=write_events)


def store_if_room[T](asked: Sequence[TaskRow], write: Write[T], *, outside: bool, write_events: bool = True) -> T:
    """Store tasks by ``write`` if there is room for all of them, else none; return what ``write`` returns.

    Raises ``QueueFull`` and ``UserLimitExceeded``, which become events with ``write_events``, and
    ``IsolationTooStrict`` inside a transaction that cannot see what others commit.
    """
    is_own = not is_in_transaction()
    try:
        for sweep in count():
            try:
                return _try(asked, write, is_own=is_own, outside=outside)
            except _NoRoom as full:
                is_too_large = full.error.asked > full.error.limit  # then no task would expire for a reason
                if is_too_large or sweep >= MAX_SWEEPS or not expire_stale(full.error.queue, full.stale_after):
                    raise full.error from None
    except LimitExceeded as error:
        if write_events:
            spec = next((row.spec for row in asked if row.spec.queue == error.queue), asked[0].spec)
            events.rejected(spec, error.code, refusal_fields(error))
        raise
    raise AssertionError("unreachable: the loop ends only by a return or an error")


def refusal_fields(error: LimitExceeded) -> tuple[str, ...]:
    """Return the limit and the counts of a refusal as fields of its event."""
    return ("limit", str(error.limit), "current", str(error.current), "asked", str(error.asked))


class _NoRoom(Exception):
    """A queue is full; expiring tasks that have waited longer than ``stale_after`` (s) may make room."""

    def __init__(self, error: QueueFull, stale_after: float) -> None:
        super().__init__(str(error))
        self.error = error
        self.stale_after = stale_after


def _try[T](asked: Sequence[TaskRow], write: Write[T], *, is_own: bool, outside: bool) -> T:
    """Count and store in one transaction (``is_own``: not the caller's); store nothing if a limit is exceeded."""
    defaults = Defaults.of_outside(is_own=is_own) if outside else Defaults()

    def attempt(*before: Callable[[], None]) -> T:
        with atomic():
            for step in before:
                step()
            _check(asked, defaults)
            return write(admitted=True)

    try:
        return attempt()
    except IsolationTooStrict:
        if not is_own:
            raise
    return attempt(rows.be_read_committed)


def _check(asked: Sequence[TaskRow], defaults: Defaults) -> None:
    """Raise unless there is room for all tasks; the room stays reserved until the transaction ends."""
    isolation, found = rows.read_limits({row.spec.queue for row in asked}, defaults)
    limits = {each.queue: each for each in found}
    lengths = {queue: each.length for queue, each in limits.items() if each.length is not None}
    pendings = {
        _scope(row, limits): limit
        for row in asked
        if row.spec.user and (limit := limits[row.spec.queue].pending_per_user) is not None
    }
    if not (lengths or pendings):
        return
    if isolation != rows.READ_COMMITTED:
        raise IsolationTooStrict(
            f"Limits of a queue or user apply here, and cannot be checked in a transaction that is {isolation!r}: it"
            " does not see what others enqueue. Use READ COMMITTED, or enqueue outside of the transaction."
        )
    new = _new_ones(asked, lengths, pendings)
    places, shares = Counter(row.spec.queue for row in new), Counter(_scope(row, limits) for row in new)
    queues = [(queue, limit) for queue, limit in sorted(lengths.items()) if places[queue]]
    users = [(scope, limit) for scope, limit in sorted(pendings.items()) if shares[scope]]
    waiting, pending = rows.lock_and_count(queues, users)
    for (scope, limit), current in zip(users, pending, strict=True):
        if current + shares[scope] > limit:
            raise UserLimitExceeded(scope.user, queue=scope.queue, limit=limit, current=current, asked=shares[scope])
    for (queue, limit), current in zip(queues, waiting, strict=True):
        if current + places[queue] > limit:
            error = QueueFull(queue, limit=limit, current=current, asked=places[queue])
            own = limits[queue].stale_after_seconds
            raise _NoRoom(error, own or conf.get().admission.stale_seconds)


def _scope(row: TaskRow, limits: dict[str, QueueLimits]) -> UserScope:
    return UserScope(row.spec.user, row.spec.queue if limits[row.spec.queue].counts_users_apart else "")


def _new_ones(asked: Sequence[TaskRow], lengths: dict[str, int], pendings: dict[UserScope, int]) -> list[TaskRow]:
    """Return the tasks that need a place: all but those with the idempotency key of a stored task."""
    keyed = {(row.spec.user, key): row for row in asked if (key := row.spec.idempotency_key) is not None}
    if not keyed:
        return list(asked)
    rows.lock(rows.lock_names(lengths, pendings))
    taken = rows.taken_keys(list(keyed), conf.get().retention.idempotency_seconds)
    fresh = [row for pair, row in keyed.items() if pair not in taken]  # a key that comes twice counts once
    return [row for row in asked if row.spec.idempotency_key is None] + fresh


def expire_stale(queue: str, older_than: float = 3600.0, limit: int = BATCH) -> int:
    """Expire at most ``limit`` tasks queued for more than ``older_than`` seconds; return how many.

    Expires the oldest first, regardless of band. Two processes may run this at once.
    """
    if not 0 <= older_than <= MAX_SECONDS:  # false for NaN too
        return 0
    with atomic():
        tasks = waiting.expire(queue, older_than, limit)
        advance_ended(tasks, Status.EXPIRED)
        enqueue_callbacks((task, Status.EXPIRED) for task in tasks)
    if tasks:
        remove_on_commit(tasks)
        events.publish_on_commit((occasion_of(EventName.EXPIRED, task, Status.EXPIRED), task.id) for task in tasks)
        send_on_commit(signals.tasks_expired, queue=queue, count=len(tasks))
    return len(tasks)


def expire_eager() -> int:
    """Expire the stale tasks of the queues that expire eagerly, full or not; return how many."""
    return sum(_expire_queue(queue, seconds) for queue, seconds in waiting.eager_queues())


def _expire_queue(queue: str, seconds: float) -> int:
    expired = 0
    for _ in range(MAX_BATCHES):
        batch = expire_stale(queue, seconds, BATCH)
        expired += batch
        if batch < BATCH:
            break
    return expired
