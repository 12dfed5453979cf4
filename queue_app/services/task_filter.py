"""Which tasks: one filter for lists, counts, exports and actions on many."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any, Final, Self

from django.db.models import Exists, OuterRef, Q, QuerySet

from queue_app.core.priorities import Band
from queue_app.models import Task, TaskAttempt, TaskPayload
from queue_app.models.querysets import TaskQuerySet

#: Times of a task that can be filtered by a range.
TIMES: Final = ("created", "queued", "started", "finished", "run")
_COLUMNS: Final = {"run": "run_after"}


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


def matching(wanted: TaskFilter, tasks: TaskQuerySet | None = None) -> TaskQuerySet:
    """Return those of ``tasks`` (all) that a filter means."""
    tasks = (Task.objects.all() if tasks is None else tasks).filter(*_plain_conditions(wanted))
    if wanted.statuses:
        tasks = tasks.in_status(*wanted.statuses)
    if wanted.effective_bands:
        tasks = tasks.with_effective_priority().filter(effective_priority__in=wanted.effective_bands)
    if wanted.error is not None:
        told = Q(message__icontains=wanted.error) | Q(exception_class__icontains=wanted.error)
        tasks = tasks.filter(Exists(TaskAttempt.objects.filter(told, task_id=OuterRef("pk"))))
    if wanted.parameters:
        tasks = tasks.filter(pk__in=_payloads(wanted.parameters).values("task_id"))
    return tasks


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
        yield Q(capabilities__contains=list(wanted.capabilities))
    yield from _times(wanted)


def _times(wanted: TaskFilter) -> Iterator[Q]:
    for time in TIMES:
        for suffix, lookup in (("after", "gte"), ("before", "lt")):
            if (limit := getattr(wanted, f"{time}_{suffix}")) is not None:
                yield Q(**{f"{_COLUMNS.get(time, f'{time}_at')}__{lookup}": limit})


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
