"""One filter of tasks for lists, counts, exports and bulk actions."""

import json
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime, timedelta
from functools import reduce
from operator import and_, or_
from typing import Any, Final, Self

from django.db.models import BooleanField, Exists, ExpressionWrapper, OuterRef, Q, Subquery

from queue_app import registry
from queue_app.core import rooms
from queue_app.core.ids import first_at
from queue_app.core.options import FILTERS, OptionFilters
from queue_app.core.priorities import Band
from queue_app.core.redaction import Secrets, redact_value
from queue_app.core.states import PENDING, TERMINAL, Status
from queue_app.models import ScheduleTick, Task, TaskAttempt, TaskPayload
from queue_app.models.querysets import TaskQuerySet, expand_statuses
from queue_app.models.task import UNSUCCESSFUL
from queue_app.models.worker import StepResult
from queue_app.sql.search import at_places, has_error

#: Times of a task that can be filtered by a range.
TIMES: Final = ("created", "queued", "started", "finished", "run")
#: Times that do not lie before the creation of a task.
_SINCE_CREATION: Final = ("created", "queued", "started", "finished")
_COLUMNS: Final = {"run": "run_after"}
#: Times that lie before the end of a task.
_BEFORE_THE_END: Final = ("created", "queued", "started")
#: Maximum difference between two clocks: of the machine that made an id and the database, or of two database servers.
_CLOCK_SKEW: Final = timedelta(minutes=10)
#: Up to this number of unsuccessful tasks, a search by parameters reads them instead of all tasks with the parameters.
FEW: Final = 10_000
#: Filters with an index that covers ended tasks only.
_INDEXED_ENDED: Final = frozenset(
    {
        "task_types",
        "effective_bands",
        "bands",
        "queues",
        "worker_id",
        "capabilities",
        *FILTERS,
    }
    - {"user"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredFilter:
    """Base of filters that are stored as JSON with an operation."""

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Self:
        """Return the filter with those of the given values that it knows by name; empty ones do not restrict."""
        return cls(**{item.name: value for item in fields(cls) if (value := given.get(item.name))})

    def as_json(self) -> dict[str, Any]:
        """Return the fields that restrict something, as plain JSON."""
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        given = {item.name: values[item.name] for item in fields(self) if values[item.name] != item.default}
        plain: dict[str, Any] = json.loads(json.dumps(given, default=_plain))
        return plain

    @classmethod
    def from_json(cls, stored: dict[str, Any]) -> Self:
        """Return the filter that ``as_json`` stored."""
        return cls(**{name: _restore(name, value) for name, value in stored.items()})


def _plain(value: Any) -> str:
    return value.isoformat() if isinstance(value, datetime) else str(value)


def _restore(name: str, value: Any) -> Any:
    if name in ("ids", "workflow_ids"):
        return [uuid.UUID(text) for text in value]
    if name == "worker_id":
        return uuid.UUID(value)
    if name in ("bands", "effective_bands"):
        return [Band(number) for number in value]
    if name.endswith(("_after", "_before")):
        return datetime.fromisoformat(value)
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskFilter(OptionFilters, StoredFilter):
    """A filter of tasks; empty fields do not restrict.

    ``*_after`` is at or after, ``*_before`` is before. ``error`` is a case-insensitive part of the class or message of
    a failed attempt. ``parameters`` are groups of JSON objects; the task's parameters must contain one object of each
    group.
    """

    ids: Sequence[uuid.UUID] | None = None
    statuses: Sequence[str] = ()  # ``pending`` is accepted
    bands: Sequence[Band] = ()
    effective_bands: Sequence[Band] = ()
    queues: Sequence[str] = ()
    task_types: Sequence[str] = ()
    worker_id: uuid.UUID | None = None
    workflow_ids: Sequence[uuid.UUID] | None = None
    capabilities: Sequence[str] = ()  # the task requires all of them
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
    any_of: Mapping[str, Sequence[str]] | None = None  # kind of names -> names; what ``services.read.search`` found
    schedule: str | None = None
    error_class: str | None = None
    kinds: Sequence[Sequence[Any]] | None = None  # (queue, task type, capabilities, concurrency key); any of them
    parameters: Sequence[Sequence[dict[str, Any]]] = ()
    by_position: bool | None = None  # ``parameters`` also mean positional arguments, of the newest tasks
    stands: str | None = None  # a name in ``conditions``: of tasks that wait for people


def matching(wanted: TaskFilter, tasks: TaskQuerySet | None = None, *, above: uuid.UUID | None = None) -> TaskQuerySet:
    """Return the ``tasks`` (default: all) that match the filter; with ``above``, only those with a greater id."""
    tasks = (Task.objects.all() if tasks is None else tasks).filter(*_plain_conditions(wanted))
    # The other tables need the condition too: PostgreSQL does not derive it from the join.
    newer, related_newer = ({}, {}) if above is None else ({"pk__gt": above}, {"task_id__gt": above})
    tasks = tasks.filter(**newer)
    if wanted.statuses:
        tasks = tasks.in_status(*wanted.statuses)
    if wanted.effective_bands:
        tasks = tasks.in_effective_band(wanted.effective_bands)
    if wanted.error is not None:
        failed = TaskAttempt.objects.filter(has_error(wanted.error), task_id=OuterRef("pk"), **related_newer)
        tasks = tasks.filter(Exists(failed))
    if wanted.parameters:
        contained = _contained(wanted)
        if _are_few(wanted.statuses):  # a subquery for each task, which PostgreSQL does not turn into a join
            found = ExpressionWrapper(contained, output_field=BooleanField())
            tasks = tasks.filter(Subquery(TaskPayload.objects.filter(task_id=OuterRef("pk")).values_list(found)))
        else:
            tasks = tasks.filter(pk__in=TaskPayload.objects.filter(contained, **related_newer).values("task_id"))
    return tasks


def conditions() -> dict[str, Callable[[], Q]]:
    """Return {what tasks wait for people for: condition}; rooms have more."""
    return {"waits_for_a_person": _awaits_signal} | rooms.named("task_filters")


def _awaits_signal() -> Q:
    steps = StepResult.objects.filter(task_id=OuterRef("pk"), done_at__isnull=True).exclude(signal="")
    return Q(Exists(steps), status=Status.BLOCKED, attempt__gt=0)


def _are_few(statuses: Sequence[str]) -> bool:
    """Return whether at most ``FEW`` tasks are in these states, if these are states without success."""
    if not statuses or not expand_statuses(statuses) <= set(UNSUCCESSFUL):
        return False
    return Task.objects.filter(status__in=statuses).order_by()[: FEW + 1].count() <= FEW


def has_index(wanted: TaskFilter) -> bool:
    """Return whether an index yields the matching tasks in order, or only a few tasks can match."""
    given = _given(wanted)
    if given <= {"parameters"}:
        return True
    in_order = {"ids", "user", "statuses", "created_before"}
    return given <= in_order and Status.COMPLETED not in expand_statuses(wanted.statuses)


def is_one_type(wanted: TaskFilter) -> bool:
    """Return whether the filter names one task type, and at most a time of creation: an index has them in order."""
    return _given(wanted) - {"created_before"} == {"task_types"} and len(wanted.task_types) == 1


def limits_of_ids(wanted: TaskFilter, skew: timedelta = _CLOCK_SKEW) -> tuple[uuid.UUID | None, uuid.UUID | None]:
    """Return the least id that a matching task may have, and one above them all: ids begin with the time of creation.

    ``None``: no limit. The least one is there only beside the other, as another index finds the tasks since a time.
    Only a machine whose clock differs by more than ``skew`` makes other ids.
    """
    after, before = wanted.created_after, [getattr(wanted, f"{time}_before") for time in _SINCE_CREATION]
    limits = [limit for limit in before if limit is not None]
    if not limits:
        return None, None
    return None if after is None else first_at(after, -skew), first_at(min(limits), skew)


def parts(wanted: TaskFilter, tasks: TaskQuerySet) -> list[TaskQuerySet]:
    """Return the ``tasks`` that match the filter, as pending and ended ones apart where that is faster.

    There are separate indexes for pending and for ended tasks. The effective band of an ended task is its own band.
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
    """Return whether a search names parameters that are not displayed; guessing must not reveal them either."""
    secrets = Secrets(names=registry.sensitive_names_of(task_types))
    return bool(redact_value(contained, secrets) != contained)


def _plain_conditions(wanted: TaskFilter) -> Iterator[Q]:
    """Yield the conditions on the columns of the task itself."""
    for column, values in (
        ("pk", wanted.ids),
        ("workflow_id", wanted.workflow_ids),
        ("priority", wanted.bands or None),
    ):
        if values is not None:
            yield Q(**{f"{column}__in": values})
    for column, names in (("queue", wanted.queues), ("task_type", wanted.task_types)):
        if names:
            yield Q(**({column: names[0]} if len(names) == 1 else {f"{column}__in": names}))
    for column in ("worker_id", *FILTERS):
        if (value := getattr(wanted, column)) is not None:
            yield Q(**{column: value})
    if wanted.capabilities:
        yield Q(capabilities__contains=list(wanted.capabilities)) & ~Q(capabilities=[])  # as the partial index has it
    yield from _found_elsewhere(wanted)
    yield from _times(wanted)


def _found_elsewhere(wanted: TaskFilter) -> Iterator[Q]:
    """Yield the conditions that the search, a reason to wait, a schedule or an error make."""
    if wanted.kinds is not None:
        yield reduce(or_, (_of_kind(*kind) for kind in wanted.kinds), Q(pk__in=()))
    if wanted.stands is not None:
        yield conditions()[wanted.stands]()
    if wanted.any_of is not None:
        yield condition_of(wanted.any_of)
    if wanted.schedule is not None:
        ticks = ScheduleTick.objects.filter(schedule__name=wanted.schedule, task_id__isnull=False)
        yield Q(pk__in=ticks.values("task_id"))
    if wanted.error_class is not None:
        yield Q(pk__in=TaskAttempt.objects.filter(exception_class=wanted.error_class).values("task_id"))


def condition_of(any_of: Mapping[str, Iterable[str]], *, task: str = "pk") -> Q:
    """Return the condition on tasks, or on rows that name a task in ``task``."""
    columns = {"ids": task, "task_types": "task_type", "queues": "queue", "users": "user"}
    if task == "pk":
        columns |= {"worker_ids": "worker_id", "keys": "concurrency_key", "workflow_ids": "workflow_id"}
    condition = Q(pk__in=())
    for prefix in any_of.get("type_prefixes", ()):
        condition |= Q(task_type__startswith=prefix)
    for kind, names in any_of.items():
        if kind in columns:
            condition |= Q(**{f"{columns[kind]}__in": list(names)})
    return condition


def _of_kind(queue: str, task_type: str, capabilities: Sequence[str], key: str) -> Q:
    return Q(queue=queue, task_type=task_type, capabilities=list(capabilities), concurrency_key=key)


def _times(wanted: TaskFilter) -> Iterator[Q]:
    for time in TIMES:
        for suffix, lookup in (("after", "gte"), ("before", "lt")):
            if (limit := getattr(wanted, f"{time}_{suffix}")) is not None:
                yield Q(**{f"{_COLUMNS.get(time, f'{time}_at')}__{lookup}": limit})
    if begun := [limit for time in _BEFORE_THE_END if (limit := getattr(wanted, f"{time}_after")) is not None]:
        # Follows from the conditions above, but lets PostgreSQL use the indexes of ended and of pending tasks.
        not_ended = [Q(status=status) for status in sorted(PENDING)]
        yield reduce(or_, not_ended, Q(finished_at__gte=max(begun) - _CLOCK_SKEW))


def _contained(wanted: TaskFilter) -> Q:
    """Return the condition on payloads for the parameters of a filter."""
    groups = []
    for values in wanted.parameters:
        group = reduce(or_, (Q(parameters__contains=value) for value in values))
        if wanted.by_position and (places := registry.places_of(values[0])):
            group |= Q(at_places(places, [rest for value in values for rest in value.values()]))
        groups.append(group)
    return reduce(and_, groups)
