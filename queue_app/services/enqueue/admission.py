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

import json
import logging
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from itertools import count
from typing import Final, Protocol

from queue_app import conf, encryption, registry, signals
from queue_app.core.events import EventName, occasion_of
from queue_app.core.limits import Scope, lane_name
from queue_app.core.payload import dump_json
from queue_app.core.records import ClaimedTask, Enqueued, NewTask, TaskRef, TaskRow
from queue_app.core.states import Status, predicate
from queue_app.core.unique import FAMILY, REPLACEABLE, Unique
from queue_app.encryption import applies_to, keyed_hash, sealed_call
from queue_app.exceptions import IsolationTooStrict, LimitExceeded, QueueFull, UniqueConflict, UserLimitExceeded
from queue_app.hooks import LIMITS, callbacks
from queue_app.models import Limit
from queue_app.services.advance import advance_ended
from queue_app.services.enqueue.validate import check_call, check_spec
from queue_app.services.notify import events
from queue_app.services.notify.index import push_on_commit, remove_on_commit, send_on_commit
from queue_app.sql import admission as rows, admission as unique_rows, waiting
from queue_app.sql.admission import Defaults, Existing, Lookup, QueueLimits, UserScope
from queue_app.sql.database import alias, atomic, fetch_all, is_in_transaction
from queue_app.sql.insert import ensure_queue, insert_many
from queue_app.telemetry import tracing

# Store the callbacks of tasks that end, in the transaction that ends them: exactly once, even after a crash.
#
# A callback that cannot be stored, because its module or its key is missing, is logged, and the task ends without it.
#
# Limits of queues and users do not apply to them, and hooks are not asked again: a callback has the metadata of its
# task.

_log = logging.getLogger("taskqueue")
#: A callback has the metadata of its task, and its own callbacks and version.
_LIMITS = replace(LIMITS, max_bytes=2 * LIMITS.max_bytes)
_METADATA = (
    "SELECT task_id, metadata::text FROM queue_app_taskpayload WHERE task_id = ANY(%s) AND metadata ? 'on_failure'"
)


def enqueue_callbacks(
    ended: Iterable[tuple[ClaimedTask | TaskRef, Status]], metadata: Mapping[uuid.UUID, str | None] | None = None
) -> None:
    """Store the callbacks of tasks that the caller's transaction ended; without ``metadata``, only of failed tasks."""
    tasks = [(task, status) for task, status in ended if status in callbacks.OPTIONS]
    if metadata is None:
        metadata = dict(fetch_all(_METADATA, [[task.id for task, _ in tasks]])) if tasks else {}
    asked = [(task, status, metadata.get(task.id)) for task, status in tasks]
    rows = [row for each in asked if (row := _row(*each)) is not None]
    if rows:
        for queue in sorted({row.spec.queue for row in rows}):
            ensure_queue(queue)
        events.announcement(insert_many(rows, tracing.of_caller(), admitted=True))()


def _row(task: ClaimedTask | TaskRef, status: Status, metadata: str | None) -> TaskRow | None:
    """Return the callback of a task that ended; ``None`` without one, or if it cannot be stored."""
    try:
        found = callbacks.follows(task, status, metadata)
        return None if found is None else _checked(task, *found, metadata)
    except Exception:  # noqa: BLE001 - from code or settings of the project; else the task would run again and again
        _log.exception("The callback of task %s (%s) cannot be stored, so none follows.", task.id, task.task_type)
        return None


def _checked(task: ClaimedTask | TaskRef, task_type: str, args: list[object], metadata: str | None) -> TaskRow:
    registered = registry.find(task_type)
    encryption.applies_to(task_type)  # raises if it should be encrypted, and there is no key
    spec = check_spec(NewTask(task_type=task_type, user=task.user), registered)
    found = callbacks.inherited(metadata) | callbacks.reserved(registered)
    text = dump_json(found, field="metadata", limits=_LIMITS) if found else None
    return check_call(replace(spec, unique=None, idempotency_key=None), args, {})._replace(metadata=text)


# Store unique tasks: decide for each new task whether an equal one exists.
#
# Callers that enqueue the same key take turns until their transactions end, so each sees what the one before stored. A
# retry, a replay and other actions of staff are not refused: they continue an existing task.
#
# A user of the API gets no task of another user, and cannot change one: such a repetition is refused.
#
# Crash points: everything is one transaction. Between its commit and the index, a postponed task may be proposed, and
# the row refuses it; a task with new arguments may be missing from the index until the reconciler adds it.


def store_unique(
    asked: Sequence[TaskRow], store: Callable[[list[TaskRow]], list[Enqueued]], *, outside: bool
) -> list[Enqueued]:
    """Store the rows that have no equal task, by ``store``; return a result for each, in order.

    Raises ``UniqueConflict``, and ``IsolationTooStrict`` in a transaction that does not see what others commit.
    """
    groups: dict[tuple[Unique, str], list[int]] = {}
    plan = _Plan(list(asked), outside)
    for position, row in enumerate(asked):
        if row.spec.unique is None:
            plan.new[position] = row
        else:
            groups.setdefault((row.spec.unique, row.spec.task_type), []).append(position)
    with atomic():
        if any(rule.on_conflict == "latest" for rule, _type in groups):
            # One task of each key runs at a time; staff may change the limit.
            limits = Limit.objects.using(alias())
            limits.get_or_create(scope=Scope.KEY, name=FAMILY, defaults={"max_concurrent": 1})
        for (rule, _type), positions in sorted(groups.items(), key=lambda group: group[0][1]):
            plan.settle(rule, positions)
        order = sorted(plan.new)
        stored = dict(zip(order, store([plan.new[position] for position in order]), strict=True)) if order else {}
    for position, first in plan.same_as.items():
        stored[position] = stored[first]._replace(created=False)
    return [plan.kept.get(position) or stored[position] for position in range(len(asked))]


@dataclass(slots=True)
class _Plan:
    """The decision for each row, by its position: store it, or return the existing task."""

    asked: list[TaskRow]
    outside: bool
    new: dict[int, TaskRow] = field(default_factory=dict)
    kept: dict[int, Enqueued] = field(default_factory=dict)
    same_as: dict[int, int] = field(default_factory=dict)  # position of the first of the same call

    def settle(self, rule: Unique, positions: Sequence[int]) -> None:
        """Decide for the rows of one rule and task type."""
        keys = {position: key_of(self.asked[position]) for position in positions}
        first_name = registry.first_name(self.asked[positions[0]].spec.task_type)
        found = _find(rule, first_name, sorted(set(keys.values())))
        first_of: dict[str, int] = {}
        renewed: dict[uuid.UUID, TaskRow] = {}
        for position, key in keys.items():
            row = _timed(self.asked[position], rule, found.clock)
            existing = found.existing.get(key)
            if existing is not None:
                self._check(rule, row, existing)
                status = existing.status
                if rule.replaces and status in REPLACEABLE:
                    renewed[existing.id] = row
                    status = Status.SCHEDULED if rule.debounce and status is Status.QUEUED else status
                self.kept[position] = Enqueued(existing.id, row.spec, status, existing.created_at, created=False)
            elif key in first_of:
                first = first_of[key]
                if rule.on_conflict == "raise":
                    raise UniqueConflict(f"{_subject(row, rule)} Two tasks of this call are the same.")
                if rule.replaces:
                    self.new[first] = self.new[first]._replace(
                        args=row.args, parameters=row.parameters, metadata=row.metadata
                    )
                self.same_as[position] = first
            else:
                first_of[key] = position
                self.new[position] = _keyed(row, key)
        if renewed:
            _renew(rule, renewed)

    def _check(self, rule: Unique, row: TaskRow, existing: Existing) -> None:
        if self.outside and existing.user != row.spec.user:
            raise UniqueConflict(f"{_subject(row, rule)} Another user has an equal task.")
        if rule.on_conflict == "raise":
            raise UniqueConflict(
                f"{_subject(row, rule)} The task {existing.id} {predicate(existing.status)}.",
                task_id=existing.id,
                status=existing.status,
            )


def _subject(row: TaskRow, rule: Unique) -> str:
    return f"{row.spec.task_type} is unique: {rule.words}."


def key_of(row: TaskRow) -> str:
    """Return the unique key of a new task."""
    spec = row.spec
    task = registry.known(spec.task_type)
    assert spec.unique is not None  # noqa: S101 - for the type checker: callers ask only for rows with a rule
    found = spec.unique.key(
        registry.first_name(spec.task_type),
        task.func if task else None,
        json.loads(row.args),
        json.loads(row.parameters),
        takes_context=bool(task and task.takes_context),
        user=spec.user,
        queue=spec.queue,
    )
    return keyed_hash(found) if applies_to(spec.task_type) else found


def _keyed(row: TaskRow, key: str) -> TaskRow:
    """Return the row with its key; with ``latest`` also in the lane in which one task of the key runs at a time."""
    spec = replace(row.spec, unique_key=key)
    if spec.unique is not None and spec.unique.on_conflict == "latest":
        gate = f"{FAMILY}:{key}"
        lane = lane_name(spec.queue, spec.task_type, spec.capabilities, spec.user, gate, spec.weight)
        spec = replace(spec, concurrency_key=gate, lane=lane)
    return row._replace(spec=spec)


def _timed(row: TaskRow, rule: Unique, clock: datetime | None) -> TaskRow:
    """Return the row with the time until which ``debounce`` lets it wait, unless the caller named a time."""
    seconds = rule.seconds("debounce")
    if seconds is None or row.spec.run_after is not None or clock is None:
        return row
    return row._replace(spec=replace(row.spec, run_after=clock + timedelta(seconds=seconds)))


def _find(rule: Unique, task_type: str, keys: Sequence[str]) -> Lookup:
    """Return the existing tasks; lock the waiting ones that get new arguments."""
    while True:
        found = unique_rows.lock_and_find([task_type], keys, rule.states or (), rule.seconds("within"))
        if not found.sees_all:
            raise IsolationTooStrict(
                "A unique task cannot be enqueued in a transaction that does not see what others commit. Use READ"
                " COMMITTED, or enqueue outside of the transaction."
            )
        waiting = [each.id for each in found.existing.values() if each.status in REPLACEABLE]
        if not (rule.replaces and waiting):
            return found
        now = unique_rows.lock_existing(waiting)
        if all(now.get(task_id) in REPLACEABLE for task_id in waiting):
            return found  # else a task started or ended before the lock, and another answer may hold


def _renew(rule: Unique, renewed: dict[uuid.UUID, TaskRow]) -> None:
    """Give waiting tasks the arguments of the rows; with ``debounce``, start their wait over."""
    if rule.debounce is not None:
        times = [(task_id, row.spec.run_after) for task_id, row in renewed.items() if row.spec.run_after is not None]
        gone = unique_rows.postpone(times, rule.seconds("max_wait"))
        if gone:
            remove_on_commit(gone)
    queued = unique_rows.replace_arguments(
        [(task_id, *sealed_call(row), row.metadata) for task_id, row in renewed.items()]
    )
    push_on_commit([task.entry for task in queued])


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
