"""Which tasks: one filter for lists, counts, exports and actions on many."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime, timedelta
from functools import reduce
from operator import or_
from typing import Any, Final, Self

from django.db.models import Exists, OuterRef, Q, QuerySet

from queue_app import registry
from queue_app.core.priorities import Band
from queue_app.core.redaction import Secrets, redact_value
from queue_app.core.states import PENDING, TERMINAL, Status
from queue_app.models import Task, TaskAttempt, TaskPayload
from queue_app.models.querysets import TaskQuerySet, expand_statuses

#: Times of a task that can be filtered by a range.
TIMES: Final = ("created", "queued", "started", "finished", "run")
_COLUMNS: Final = {"run": "run_after"}
#: What nothing that happens to a task comes before; clocks of databases may differ by so much after a failover.
_ENDED_AFTER: Final = ("created", "queued", "started")
_CLOCKS: Final = timedelta(minutes=10)
#: What there is an index of, among what has ended only.
_INDEXED_ENDED: Final = frozenset(
    {"task_types", "effective_bands", "bands", "queues", "worker_id", "capabilities", "created_before"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskFilter:
    """Which tasks; what is empty does not restrict.

    ``*_after`` is at or after, ``*_before`` is before. ``error`` is text somewhere in the
    class or message of a failed attempt, in upper or lower case. ``parameters`` are JSON
    objects of which, group by group, one must be contained in the task's parameters.
    """

    ids: Sequence[uuid.UUID] | None = None
    statuses: Sequence[str] = ()  # ``pending`` is accepted
    bands: Sequence[Band] = ()
    effective_bands: Sequence[Band] = ()
    queues: Sequence[str] = ()
    task_types: Sequence[str] = ()
    user: str | None = None
    worker_id: uuid.UUID | None = None
    capabilities: Sequence[str] = ()  # all of them are required by the task
    created_after: datetime | None = None
    created_before: datetime | None = None
    queued_after: datetime | None = None
    queued_before: datetime | None = None
    started_after: datetime | None = None
    started_before: datetime | None = None
    finished_after: datetime | None = None
    finished_before: datetime | None = None
    run_after: datetime | None = None
    run_before: datetime | None = None
    error: str | None = None
    parameters: Sequence[Sequence[dict[str, Any]]] = ()

    def as_json(self) -> dict[str, Any]:
        """Return it as plain JSON, to be stored with an operation."""
        stored = {item.name: getattr(self, item.name) for item in fields(self)}
        stored = {name: value for name, value in stored.items() if value is not None and value != ()}
        loaded: dict[str, Any] = json.loads(json.dumps(stored, default=_plain))
        return loaded

    @classmethod
    def from_json(cls, stored: dict[str, Any]) -> Self:
        """Return what ``as_json`` stored."""
        return cls(**{name: _restore(name, value) for name, value in stored.items()})


def matching(wanted: TaskFilter, tasks: TaskQuerySet | None = None, *, above: uuid.UUID | None = None) -> TaskQuerySet:
    """Return those of ``tasks`` (all) that a filter means; none but those with greater ids where ``above`` is given."""
    tasks = (Task.objects.all() if tasks is None else tasks).filter(*_plain_conditions(wanted))
    # Said of what lies beside a task as well: PostgreSQL does not carry it over.
    newer, beside = ({}, {}) if above is None else ({"pk__gt": above}, {"task_id__gt": above})
    tasks = tasks.filter(**newer)
    if wanted.statuses:
        tasks = tasks.in_status(*wanted.statuses)
    if wanted.effective_bands:
        tasks = tasks.in_effective_band(wanted.effective_bands)
    if wanted.error is not None:
        told = Q(message__icontains=wanted.error) | Q(exception_class__icontains=wanted.error)
        tasks = tasks.filter(Exists(TaskAttempt.objects.filter(told, task_id=OuterRef("pk"), **beside)))
    if wanted.parameters:
        tasks = tasks.filter(pk__in=_payloads(wanted.parameters).filter(**beside).values("task_id"))
    return tasks


def has_index(wanted: TaskFilter) -> bool:
    """Whether an index leads to the tasks of a filter in their order, or to the few there are."""
    given = _given(wanted)
    if given <= {"parameters"}:
        return True
    return given <= {"ids", "user", "statuses"} and Status.COMPLETED not in expand_statuses(wanted.statuses)


def is_one_type(wanted: TaskFilter) -> bool:
    """Whether a filter means all tasks of one type that have ended, or wait: there is an index in their order."""
    return _given(wanted) == {"task_types"} and len(wanted.task_types) == 1


def parts(wanted: TaskFilter, tasks: TaskQuerySet) -> list[TaskQuerySet]:
    """Return those of ``tasks`` that a filter means, in two parts where that helps: what goes on, and what has ended.

    There are indexes of what has ended, and of what has not; and the band of what has is its own, which need not be
    derived.
    """
    if not _given(wanted) & _INDEXED_ENDED:
        return [matching(wanted, tasks)]
    statuses = expand_statuses(wanted.statuses) or frozenset(Status)
    found = [matching(wanted, tasks).pending()] if statuses & PENDING else []
    if statuses & TERMINAL:
        own = frozenset(wanted.effective_bands or Band) & frozenset(wanted.bands or Band)
        bands = sorted(own) if wanted.effective_bands else wanted.bands
        found.append(matching(replace(wanted, bands=bands, effective_bands=()), tasks if own else tasks.none()).ended())
    return found


def _given(wanted: TaskFilter) -> set[str]:
    return {item.name for item in fields(wanted) if getattr(wanted, item.name) not in (None, (), [])}


def seeks_hidden(contained: dict[str, Any], task_types: Sequence[str]) -> bool:
    """Whether parameters that are searched for would not be shown: then nobody may learn them by trying, either."""
    secrets = Secrets(names=registry.sensitive_names_of(task_types))
    return bool(redact_value(contained, secrets) != contained)


def _plain_conditions(wanted: TaskFilter) -> Iterator[Q]:
    """Yield what the columns of the task itself have to be."""
    for column, values in (("pk", wanted.ids), ("priority", wanted.bands or None)):
        if values is not None:
            yield Q(**{f"{column}__in": values})
    for column, names in (("queue", wanted.queues), ("task_type", wanted.task_types)):
        if names:
            yield Q(**({column: names[0]} if len(names) == 1 else {f"{column}__in": names}))
    for column, value in (("user", wanted.user), ("worker_id", wanted.worker_id)):
        if value is not None:
            yield Q(**{column: value})
    if wanted.capabilities:
        yield Q(capabilities__contains=list(wanted.capabilities)) & ~Q(capabilities=[])  # as the index says it
    yield from _times(wanted)


def _times(wanted: TaskFilter) -> Iterator[Q]:
    for time in TIMES:
        for suffix, lookup in (("after", "gte"), ("before", "lt")):
            if (limit := getattr(wanted, f"{time}_{suffix}")) is not None:
                yield Q(**{f"{_COLUMNS.get(time, f'{time}_at')}__{lookup}": limit})
    if begun := [limit for time in _ENDED_AFTER if (limit := getattr(wanted, f"{time}_after")) is not None]:
        # Follows from the above, but there is an index of when tasks ended, and of those that have not.
        not_ended = [Q(status=status) for status in sorted(PENDING)]
        yield reduce(or_, not_ended, Q(finished_at__gte=max(begun) - _CLOCKS))


def _payloads(groups: Sequence[Sequence[dict[str, Any]]]) -> QuerySet[TaskPayload]:
    payloads = TaskPayload.objects.all()
    for alternatives in groups:
        contained = Q()
        for value in alternatives:
            contained |= Q(parameters__contains=value)
        payloads = payloads.filter(contained)
    return payloads


def _plain(value: Any) -> str:
    return value.isoformat() if isinstance(value, datetime) else str(value)


def _restore(name: str, value: Any) -> Any:
    if name == "ids":
        return [uuid.UUID(text) for text in value]
    if name == "worker_id":
        return uuid.UUID(value)
    if name in ("bands", "effective_bands"):
        return [Band(number) for number in value]
    if name.endswith(("_after", "_before")):
        return datetime.fromisoformat(value)
    return value
