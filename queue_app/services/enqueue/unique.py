"""Store unique tasks: decide for each new task whether an equal one exists.

Callers that enqueue the same key take turns until their transactions end, so each sees what the one before stored. A
retry, a replay and other actions of staff are not refused: they continue an existing task.

A user of the API gets no task of another user, and cannot change one: such a repetition is refused.

Crash points: everything is one transaction. Between its commit and the index, a postponed task may be proposed, and
the row refuses it; a task with new arguments may be missing from the index until the reconciler adds it.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from queue_app import registry
from queue_app.core.lanes import lane_name
from queue_app.core.limit_values import Scope
from queue_app.core.records import Enqueued, TaskRow
from queue_app.core.states import Status, predicate
from queue_app.core.unique import FAMILY, REPLACEABLE, Unique
from queue_app.encryption import applies_to, keyed_hash, sealed_call
from queue_app.exceptions import IsolationTooStrict, UniqueConflict
from queue_app.models import Limit
from queue_app.services.notify.index import push_on_commit, remove_on_commit
from queue_app.sql import unique as rows
from queue_app.sql.database import alias, atomic
from queue_app.sql.unique import Existing, Lookup


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
        found = rows.lock_and_find([task_type], keys, rule.states or (), rule.seconds("within"))
        if not found.sees_all:
            raise IsolationTooStrict(
                "A unique task cannot be enqueued in a transaction that does not see what others commit. Use READ"
                " COMMITTED, or enqueue outside of the transaction."
            )
        waiting = [each.id for each in found.existing.values() if each.status in REPLACEABLE]
        if not (rule.replaces and waiting):
            return found
        now = rows.lock_existing(waiting)
        if all(now.get(task_id) in REPLACEABLE for task_id in waiting):
            return found  # else a task started or ended before the lock, and another answer may hold


def _renew(rule: Unique, renewed: dict[uuid.UUID, TaskRow]) -> None:
    """Give waiting tasks the arguments of the rows; with ``debounce``, start their wait over."""
    if rule.debounce is not None:
        times = [(task_id, row.spec.run_after) for task_id, row in renewed.items() if row.spec.run_after is not None]
        gone = rows.postpone(times, rule.seconds("max_wait"))
        if gone:
            remove_on_commit(gone)
    queued = rows.replace_arguments([(task_id, *sealed_call(row), row.metadata) for task_id, row in renewed.items()])
    push_on_commit([task.entry for task in queued])
