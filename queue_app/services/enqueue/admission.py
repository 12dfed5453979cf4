"""Admit tasks to queues that have room: ``max_length`` of a queue, ``max_pending_per_user``.

Which numbers hold: the queue's own ones for whoever enqueues; ``max_pending_per_user`` of the
runtime settings too. What comes from outside (API, request stream) is limited by default as
well: by ``max_length`` of the runtime settings, and ``ADMISSION.MAX_PENDING_PER_USER``.

``max_length`` counts what waits, scheduled or queued. The number of a user counts all that is
pending: in the queue that names a number, else in all queues that name none. Only submissions
are measured: a retry, a task given back or a replay always finds its place.

Never exceeded by submitters: where a limit applies, those of one queue, and those of one
user, go one after the other until their transactions end (``sql.admission``). In a long
transaction, enqueue late: others wait. Two transactions that enqueue to the same two queues
in different orders may deadlock; PostgreSQL ends one of them with an error. Where no limit
is set, code that enqueues takes no lock and counts nothing.

A full queue gives up its stale tasks first: those older than its ``stale_after_seconds``. With a
``max_length`` of its own and no such number, an hour. Under the default for what comes from
outside nothing is stale unless the queue says so: code was promised that it has no limit.

Crash points: everything is one transaction; what ended in between was not admitted. Giving up
stale tasks is a transition of its own, before it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import count
from typing import Final, Protocol

from queue_app import conf, signals
from queue_app.core.events import EventName, occasion_of
from queue_app.core.states import Status
from queue_app.exceptions import IsolationTooStrict, LimitExceeded, QueueFull, UserLimitExceeded
from queue_app.services.notify import events
from queue_app.services.notify.index import on_commit
from queue_app.sql import admission as rows
from queue_app.sql import waiting
from queue_app.sql.admission import QueueLimits, UserScope, insert_if_room
from queue_app.sql.database import atomic, connection
from queue_app.sql.insert import LimitApplies, Place, Stored, TaskRow

#: Without the row of the runtime settings.
DEFAULT_LENGTH: Final = 10_000
#: After so many rounds of giving up stale tasks, of which others took the places, the queue is full.
MAX_SWEEPS: Final = 20


class Write[T](Protocol):
    """Stores tasks; raises ``LimitApplies`` where limits are set, unless they were ``admitted``."""

    def __call__(self, *, admitted: bool = False) -> T:
        """Store them."""


def store_one(row: TaskRow, write: Write[Stored | None], *, outside: bool, tell: bool = True) -> Stored | None:
    """As ``store``, of one task; where it has a transaction to itself and there is room, in one round trip."""
    if not (outside and _is_own()):
        return store([row], write, outside=outside, tell=tell)
    settings = conf.get().admission
    stored = insert_if_room(
        row,
        default_length=DEFAULT_LENGTH,
        default_pending=settings.max_pending_per_user,
        lock_seconds=settings.lock_seconds,
    )
    return stored or store([row], write, outside=outside, tell=tell)  # which finds out why, or makes room


def store[T](asked: Sequence[Place | TaskRow], write: Write[T], *, outside: bool, tell: bool = True) -> T:
    """Store tasks by ``write``, all or none, if there is room for all; return what it returns.

    Raises ``QueueFull`` and ``UserLimitExceeded``, which with ``tell`` are told as events, and
    ``IsolationTooStrict`` inside a transaction that cannot see what others commit.
    """
    if not outside:
        try:
            return write()
        except LimitApplies:
            pass
    try:
        return _store_if_room(asked, write, outside=outside)
    except LimitExceeded as error:
        if tell:
            spec = next((row.spec for row in asked if row.spec.queue == error.queue), asked[0].spec)
            events.rejected(spec, error.code, numbers(error))
        raise


def _store_if_room[T](asked: Sequence[Place | TaskRow], write: Write[T], *, outside: bool) -> T:
    for sweep in count():
        try:
            return _try(asked, write, outside=outside)
        except _NoRoom as full:
            may_sweep = full.stale_after is not None and sweep < MAX_SWEEPS
            if not (may_sweep and expire_stale(full.error.queue, full.stale_after or 0.0)):
                raise full.error from None
    raise AssertionError("the count has no end")


class _NoRoom(Exception):
    """A queue is full; tasks that wait longer than ``stale_after`` (s) may make room."""

    def __init__(self, error: QueueFull, stale_after: float | None) -> None:
        super().__init__(str(error))
        self.error = error
        self.stale_after = stale_after


def _try[T](asked: Sequence[Place | TaskRow], write: Write[T], *, outside: bool) -> T:
    """Count and store in one transaction, of its own or as part of the caller's; raise without a trace."""
    is_own = _is_own()
    lock_seconds = conf.get().admission.lock_seconds if is_own and outside else None
    try:
        with atomic():
            _check(asked, outside=outside, lock_seconds=lock_seconds)
            return write(admitted=True)
    except IsolationTooStrict:
        if not is_own:
            raise
    with atomic():
        rows.be_read_committed()
        _check(asked, outside=outside, lock_seconds=lock_seconds)
        return write(admitted=True)


def _is_own() -> bool:
    """Whether what is stored now is a transaction of its own."""
    return not connection().in_atomic_block and connection().get_autocommit()


def _check(asked: Sequence[Place | TaskRow], *, outside: bool, lock_seconds: float | None) -> None:
    """Raise unless there is room for all; until the transaction ends nobody else takes it."""
    isolation, found = rows.read_limits({row.spec.queue for row in asked}, lock_seconds)
    limits = {each.queue: each for each in found}
    lengths = {queue: limit for queue, each in limits.items() if (limit := _length(each, outside=outside)) is not None}
    pendings = _pendings(asked, limits, outside=outside)
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
            raise _NoRoom(error, _stale_after(limits[queue]))


def _length(limits: QueueLimits, *, outside: bool) -> int | None:
    if limits.max_length is not None or not outside:
        return limits.max_length
    return DEFAULT_LENGTH if limits.default_length is None else limits.default_length


def _stale_after(limits: QueueLimits) -> float | None:
    if limits.stale_after_seconds is not None or limits.max_length is None:
        return limits.stale_after_seconds
    return DEFAULT_STALE_SECONDS


def _pendings(
    asked: Sequence[Place | TaskRow], limits: dict[str, QueueLimits], *, outside: bool
) -> dict[UserScope, int]:
    """Return the limit of each user who asks."""
    found: dict[UserScope, int] = {}
    for row in asked:
        if row.spec.user:
            each = limits[row.spec.queue]
            limit = each.default_pending_per_user if each.max_pending_per_user is None else each.max_pending_per_user
            if limit is None and outside:
                limit = conf.get().admission.max_pending_per_user
            if limit is not None:
                found[_scope(row, limits)] = limit
    return found


def _scope(row: Place | TaskRow, limits: dict[str, QueueLimits]) -> UserScope:
    own = limits[row.spec.queue].max_pending_per_user is not None
    return UserScope(row.spec.user, row.spec.queue if own else "")


def _new_ones(
    asked: Sequence[Place | TaskRow], lengths: dict[str, int], pendings: dict[UserScope, int]
) -> list[Place | TaskRow]:
    """Return what takes a place: a task whose idempotency key is taken is there already, and may be asked for again."""
    keyed = {(row.spec.user, key): row for row in asked if (key := row.spec.idempotency_key) is not None}
    if not keyed:
        return list(asked)
    rows.lock(rows.lock_names(lengths, pendings))
    taken = rows.taken_keys(list(keyed), conf.get().retention.idempotency_seconds)
    fresh = [row for pair, row in keyed.items() if pair not in taken]  # of a key that comes twice, one
    return [row for row in asked if row.spec.idempotency_key is None] + fresh


def numbers(error: LimitExceeded) -> tuple[str, ...]:
    """Return the numbers of a refusal as the fields of its event."""
    return ("limit", str(error.limit), "current", str(error.current), "asked", str(error.asked))


BATCH = 500
#: So long may a task wait in a full queue whose own limit is not set, before it makes room for another.
DEFAULT_STALE_SECONDS: Final = 3600.0
#: A run deals with so many batches of one queue at most; the rest is the next run's.
MAX_BATCHES = 20
#: A limit that is longer than this is never.
MAX_SECONDS: Final = 10 * 365 * 86_400.0


def expire_stale(queue: str, older_than: float = DEFAULT_STALE_SECONDS, limit: int = BATCH) -> int:
    """Expire at most ``limit`` tasks that have been queued for more than ``older_than`` seconds; return how many.

    Oldest first, whatever their bands. Safe twice at once.
    """
    if not 0 <= older_than <= MAX_SECONDS:  # beyond the dates that PostgreSQL knows; false for NaN too
        return 0
    tasks = waiting.expire(queue, older_than, limit)
    if tasks:
        on_commit(lambda index: index.remove(tasks), "remove")
        events.publish_on_commit((occasion_of(EventName.EXPIRED, task, Status.EXPIRED), task.id) for task in tasks)
        signals.tasks_expired.send(None, queue=queue, count=len(tasks))
    return len(tasks)


def expire_eager() -> int:
    """Expire what is stale in the queues that ask for it without being full; return how many tasks."""
    return sum(_expire_queue(queue, seconds) for queue, seconds in waiting.eager_queues())


def _expire_queue(queue: str, seconds: float) -> int:
    expired = 0
    for _ in range(MAX_BATCHES):
        batch = expire_stale(queue, seconds, BATCH)
        expired += batch
        if batch < BATCH:
            break
    return expired
