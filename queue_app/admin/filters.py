"""Filters and search of the lists of tasks and dead letters."""

import re
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Final, cast

from django.contrib import admin
from django.contrib.admin.options import IncorrectLookupParameters
from django.db.models import F, Q, QuerySet
from django.db.models.functions import Coalesce, Now
from django.http import HttpRequest
from django.utils import timezone
from django.utils.translation import gettext as _, gettext_lazy as _lazy

from queue_app.core.ids import CLOCKS_DIFFER, first_at
from queue_app.core.options import FILTERS
from queue_app.core.priorities import Band
from queue_app.core.shared import Shared
from queue_app.core.states import PENDING_NAME, Status
from queue_app.dashboard import labels
from queue_app.diagnose.waits import kinds_that_wait, wait_codes
from queue_app.encryption import check_search
from queue_app.exceptions import InvalidTaskData
from queue_app.models import Queue, Worker, Workflow
from queue_app.models.dead_letter import DeadLetterQuerySet
from queue_app.models.querysets import TaskQuerySet
from queue_app.models.queue import NAME_PATTERN
from queue_app.models.worker import LIVING, WorkerStatus
from queue_app.services.read.search import find, known_types, listed, meanings, named, nested, workflows_named
from queue_app.services.read.task_filter import TaskFilter, condition_of, conditions, matching, seeks_hidden

# The search of the task list as one filter, which the list and the actions on all that match share.

SEARCH_HELP = _lazy(
    "What you see of a task, such as its id, type or user. Conditions: type: queue: worker: user: key: schedule:"
    " workflow: error: parameters.KEY:VALUE"
)
#: Maximum number of names in a filter, and of workers or workflows that a name means.
MAX_NAMES: Final = 200
SINCE: Final = {
    "15m": timedelta(minutes=15),
    "1h": timedelta(hours=1),
    "24h": timedelta(hours=24),
    "7d": timedelta(days=7),
}
ENDED: Final = {"1m": timedelta(minutes=1), **SINCE}
#: The status of the filter that finds all tasks that failed for good; the tile "Failed per minute" counts them.
FAILED_ANY: Final = "failed_any"
_STATUSES: Final = {FAILED_ANY: (Status.FAILED, Status.DEAD_LETTER)}
BANDS: Final = {band.label: band for band in Band}
_PARAMETERS = "parameters."
_KINDS = ("user:", "type:", "queue:", "worker:", "key:", "schedule:", "workflow:", "error:", _PARAMETERS)


class NotAllowed(Exception):
    """The user may not search for this."""


def read_term(term: str, *, may_view_payload: bool) -> tuple[TaskFilter, list[str]]:
    """Return the filter for a search term, and what the page says about the search.

    Raises ``NotAllowed``. Only users who may read parameters and errors can search in them, and no one can find secrets
    by guessing.
    """
    term = term.strip()
    if not term:
        return TaskFilter(), []
    if meant_id := labels.id_of(term):
        of_workflow = Workflow.objects.filter(pk=meant_id).exists()
        return TaskFilter(workflow_ids=[meant_id]) if of_workflow else TaskFilter(ids=[meant_id]), []
    found, notes = TaskFilter(), list[str]()
    for kind, value in _parts(term):
        if kind:
            found = _add(found, kind, value, may_view_payload=may_view_payload)
        else:
            meant = find(value, may_view_payload=may_view_payload)
            found, notes = meant.as_filter(), meant.notes
    if any(seeks_hidden(contained, found.task_types) for group in found.parameters for contained in group):
        raise NotAllowed(_("Hidden values cannot be searched."))
    if found.parameters or found.error is not None:
        try:
            check_search("q", found.task_types)
        except InvalidTaskData as error:
            raise NotAllowed(error.message) from None
    return found, notes


def _parts(term: str) -> list[tuple[str, str]]:
    """Split a term at the words that name a kind; other words belong to the value before them, or to no kind."""
    parts: list[tuple[str, str]] = []
    for part in term.split():
        if part.startswith(_KINDS) and ":" in part:
            kind, _separator, value = part.partition(":")
            parts.append((kind, value))
        elif parts:
            parts[-1] = (parts[-1][0], f"{parts[-1][1]} {part}".strip())
        else:
            parts.append(("", part))
    return parts


def _add(found: TaskFilter, kind: str, value: str, *, may_view_payload: bool) -> TaskFilter:
    if kind in _NAMED:
        return _NAMED[kind](found, value)
    if not may_view_payload:
        raise NotAllowed(_("Searching in arguments and errors needs the permission queue_app.view_payload."))
    if kind == "error":
        return replace(found, error=value)
    keys = kind.removeprefix(_PARAMETERS).split(".")
    group = [nested(keys, item) for item in meanings(value)]
    return replace(found, parameters=[*found.parameters, group], by_position=True)


def _of_type(found: TaskFilter, value: str) -> TaskFilter:
    types = [name for name in known_types() if value.lower() in name.lower()]
    return replace(found, task_types=types) if types else replace(found, any_of={"type_prefixes": [value]})


def _of_worker(found: TaskFilter, value: str) -> TaskFilter:
    ids = Worker.objects.filter(name__icontains=value).order_by("-id").values_list("id", flat=True)[:MAX_NAMES]
    return replace(found, any_of={"worker_ids": [str(worker_id) for worker_id in ids]})


def _of_workflow(found: TaskFilter, value: str) -> TaskFilter:
    return replace(found, workflow_ids=list(workflows_named(value).values_list("id", flat=True)[:MAX_NAMES]))


def _exactly(option: str) -> Callable[..., TaskFilter]:
    return lambda found, value, *_: replace(found, **{option: value})


#: Word before a colon -> the filter narrowed by the value after it.
_NAMED: Final[Mapping[str, Callable[[TaskFilter, str], TaskFilter]]] = {
    **{name: _exactly(name) for name in FILTERS},
    "type": _of_type,
    "queue": lambda found, value: replace(found, queues=named(value)["queues"] or [value]),
    "key": lambda found, value: replace(found, concurrency_key=value),
    "schedule": lambda found, value: replace(found, schedule=value),
    "worker": _of_worker,
    "workflow": _of_workflow,
}


def read_address(data: Mapping[str, str], now: datetime, *, may_view_payload: bool) -> TaskFilter:
    """Return the filter for the parameters of the list's address.

    Raises ``NotAllowed``, ``Ambiguous``, and ``ValueError`` or ``KeyError`` for invalid values.
    """
    found, _notes = read_term(data.get("q", ""), may_view_payload=may_view_payload)
    if unknown := {name.removesuffix("__exact") for name in data} - {*NARROW, *_PLACE}:
        raise ValueError(_("An action on all that match knows no filter by %(name)s.") % {"name": min(unknown)})
    for name, narrow in NARROW.items():
        if value := data.get(name):
            found = narrow(found, value, now)
    return found


def _waiting(found: TaskFilter, code: str, _now: datetime) -> TaskFilter:
    """Add that the tasks wait for a reason now. Raises ``LookupError`` for an unknown one."""
    if code in conditions():
        return replace(found, stands=code)
    if code not in wait_codes():
        raise LookupError(code)
    return replace(found, kinds=kinds_that_wait(code), statuses=found.statuses or [Status.QUEUED])


#: Parameters of the address that do not change which tasks the list contains.
_PLACE: Final = ("q", "p", "o", "e", "sort", "all", "_changelist_filters", "_facets", "_popup", "_to_field")


def narrows(address: Mapping[str, str]) -> bool:
    """Return whether the parameters of a list's address leave fewer tasks than all."""
    names = {name.removesuffix("__exact") for name, value in address.items() if value.strip()}
    return "q" in names or not names <= {*_PLACE}


#: Parameter of the address -> the filter narrowed by its value, in this order.
NARROW: Final[Mapping[str, Callable[[TaskFilter, str, datetime], TaskFilter]]] = {
    "status": lambda found, name, _: replace(found, statuses=_STATUSES.get(name, (name,))),
    "priority": lambda found, name, _: replace(found, effective_bands=[BANDS[name]]),
    "queue": lambda found, name, _: replace(found, queues=[name]),
    "task_type": lambda found, name, _: replace(found, task_types=_both(found.task_types, name, [""])),
    **{name: _exactly(name) for name in FILTERS},
    "worker_id": lambda found, text, _: replace(found, worker_id=uuid.UUID(text)),
    "workflow_id": lambda found, text, _: replace(found, workflow_ids=_both(found.workflow_ids, uuid.UUID(text), [])),
    "since": lambda found, name, now: replace(found, created_after=now - SINCE[name]),
    "schedule": lambda found, name, _: replace(found, schedule=name),
    "error_class": lambda found, name, _: replace(found, error_class=name),
    "ended": lambda found, name, now: replace(found, finished_after=now - ENDED[name]),
    "wait": _waiting,
}


def _both[T](searched: Sequence[T] | None, chosen: T, nothing: list[T]) -> list[T]:
    """Return what both the search and the filter allow; ``nothing``, which matches no task, if they differ."""
    return [chosen] if searched in (None, ()) or chosen in searched else nothing


_NAME = re.compile(NAME_PATTERN)


def choice_filter(
    title: Any,
    parameter: str,
    choices: Callable[[], Iterable[str]],
    keep: Callable[[QuerySet[Any], str], QuerySet[Any]] | None = None,
    label: Callable[[str], str] = labels.word,
) -> type[admin.SimpleListFilter]:
    """Return a filter by one of ``choices()``.

    ``keep(rows, value)`` raises ``LookupError`` or ``ValueError`` for an invalid value, which leads
    back to the unfiltered list. A valid value need not be among the choices. Without ``keep``, the list of tasks is
    narrowed as actions on all that match read the address (``NARROW``).
    """

    def narrowed(rows: QuerySet[Any], value: str) -> QuerySet[Any]:
        return matching(NARROW[parameter](TaskFilter(), value, timezone.now()), cast("TaskQuerySet", rows))

    class ChoiceFilter(admin.SimpleListFilter):
        def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
            return [(name, label(name)) for name in choices()]

        def has_output(self) -> bool:
            # Without choices, Django would ignore the value and list everything.
            return super().has_output() or bool(self.value())

        def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
            value = self.value()
            try:
                return (keep or narrowed)(queryset, value) if value else queryset
            except (LookupError, ValueError) as error:
                raise IncorrectLookupParameters from error

    ChoiceFilter.title, ChoiceFilter.parameter_name = title, parameter
    return ChoiceFilter


class LivingFilter(admin.SimpleListFilter):
    """Living workers; stopped and dead ones are one click away."""

    title, parameter_name = _lazy("status"), "shown"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        return [("ended", _lazy("stopped or dead")), ("all", _lazy("all workers"))]

    def choices(self, changelist: Any) -> Any:
        first, *rest = super().choices(changelist)
        return [first | {"display": _lazy("living")}, *rest]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """Return the chosen workers; an address that names a status means that status."""
        shown = self.value()
        if shown == "all" or (shown is None and any(name.startswith("status") for name in request.GET)):
            return queryset
        living = Q(status__in=LIVING)
        return queryset.filter(living if shown is None else ~living)


def _of_queue(rows: QuerySet[Any], name: str) -> QuerySet[Any]:
    if not _NAME.match(name):
        raise ValueError(name)
    return rows.filter(queue=name)


def _since(rows: QuerySet[Any], name: str) -> QuerySet[Any]:
    since = timezone.now() - SINCE[name]
    # Ids begin with their time, so the primary key bounds the scan.
    return rows.filter(created_at__gte=since, id__gte=first_at(since, -CLOCKS_DIFFER))


def _read_workers(_key: str) -> dict[str, str]:
    found = Worker.objects.filter(status=WorkerStatus.ACTIVE).order_by("name").values_list("id", "name")
    return {str(worker_id): name for worker_id, name in found[:MAX_NAMES]}


#: Shared for a moment, because the menu asks for the name of each.
_workers: Final = Shared(_read_workers, lambda _: 5.0)
#: Number of newest tasks that are sorted by a value that no index has.
SORTED_TASKS: Final = 10_000


def _newest(rows: QuerySet[Any]) -> QuerySet[Any]:
    """Return the newest of the rows. Their oldest id is read first: the range then needs no second look at each row."""
    oldest = rows.order_by("-id").values_list("pk", flat=True)[SORTED_TASKS - 1 : SORTED_TASKS].first()
    return rows if oldest is None else rows.filter(pk__gte=oldest)


#: Order -> the tasks in it. The time of a task that has not ended runs to now.
SORTED: Final[dict[str, Callable[[QuerySet[Any]], QuerySet[Any]]]] = {
    "oldest": lambda rows: rows.order_by("id"),
    "slowest": lambda rows: _newest(rows).order_by(
        (Coalesce("finished_at", Now()) - F("started_at")).desc(nulls_last=True), "-id"
    ),
    "attempts": lambda rows: _newest(rows).order_by("-attempt", "-id"),
}


StatusFilter = choice_filter(
    _lazy("status"),
    "status",
    lambda: [PENDING_NAME, *Status, FAILED_ANY],
    label=lambda name: str(_lazy("failed or dead letter")) if name == FAILED_ANY else labels.word(name),
)
#: The effective band: what the lists, the overview's counts and the targets go by.
BandFilter = choice_filter(_lazy("priority"), "priority", lambda: BANDS)
#: A dead letter keeps the band of its task.
LetterBandFilter = choice_filter(
    _lazy("priority"), "priority", lambda: BANDS, lambda rows, value: rows.filter(priority=BANDS[value])
)
#: The names come from the table of queues; distinct names of all tasks would cost a scan.
QueueFilter = choice_filter(
    _lazy("queue"),
    "queue",
    lambda: Queue.objects.order_by("name").values_list("name", flat=True)[:MAX_NAMES],
    _of_queue,
    label=str,
)
#: The names come from the code and the live workers.
TypeFilter = choice_filter(
    _lazy("task type"), "task_type", lambda: known_types()[:MAX_NAMES], label=lambda name: name.rpartition(".")[2]
)
SinceFilter = choice_filter(_lazy("created in the last"), "since", lambda: SINCE, _since)
#: Without a menu: links and the search name the value.
EndedFilter = choice_filter(_lazy("ended in the last"), "ended", lambda: ())
ErrorClassFilter = choice_filter(_lazy("error"), "error_class", lambda: (), label=str)
ScheduleFilter = choice_filter(_lazy("schedule"), "schedule", lambda: (), label=str)
#: The address names the worker by its id; the menu by its name.
WorkerFilter = choice_filter(
    _lazy("worker"), "worker_id", _workers.get, label=lambda value: _workers.get().get(value, value)
)


class WorkflowFilter(choice_filter(_lazy("workflow"), "workflow_id", lambda: ())):  # type: ignore[misc]  # made by a function
    """The only choice is the workflow that the address names; links and the search name it."""

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        meant_id = labels.id_of(request.GET.get("workflow_id", ""))
        flow = Workflow.objects.filter(pk=meant_id).first() if meant_id else None
        return [(str(flow.pk), flow.name)] if flow else []


class SortFilter(choice_filter(_lazy("sort by"), "sort", lambda: SORTED, lambda rows, name: SORTED[name] and rows)):  # type: ignore[misc]  # as above
    """The order of the list, which sorts when all filters have narrowed it; without a choice the newest come first."""

    def choices(self, changelist: Any) -> Any:
        first, *rest = super().choices(changelist)
        return [first | {"display": _lazy("newest")}, *rest]


WaitFilter = choice_filter(_lazy("waits because"), "wait", lambda: [*conditions(), *wait_codes()])
#: The filters of the list of tasks.
OF_TASKS: Final = (
    StatusFilter, BandFilter, QueueFilter, TypeFilter, WorkerFilter, WaitFilter, SinceFilter, EndedFilter,
    WorkflowFilter, ScheduleFilter, ErrorClassFilter, SortFilter,
)  # fmt: skip


def search_tasks(tasks: TaskQuerySet, term: str, *, may_view_payload: bool) -> tuple[TaskQuerySet, list[str]]:
    """Return the tasks that match a search term, and what the page says about the search. Raises ``NotAllowed``."""
    wanted, notes = read_term(term, may_view_payload=may_view_payload)
    found, more = listed(wanted, tasks)
    return found, notes + more


#: Condition on tasks -> the same on dead letters, which tell it themselves, also once their tasks are purged.
_OF_LETTERS: Final = {"ids": "task_id__in", "task_types": "task_type__in", "queues": "queue__in", "user": "user"}


def search_letters(
    letters: DeadLetterQuerySet, term: str, *, may_view_payload: bool
) -> tuple[DeadLetterQuerySet, list[str]]:
    """Return the dead letters that match, as ``search_tasks`` does: by themselves, and for the rest by their tasks."""
    if not labels.id_of(term := term.strip()) and all(not kind for kind, _value in _parts(term)):
        seen = find(term, may_view_payload=may_view_payload)
        return letters.filter(condition_of(seen.any_of, task="task_id") | Q(user=term)), seen.notes
    wanted, notes = read_term(term, may_view_payload=may_view_payload)
    own = {lookup: value for name, lookup in _OF_LETTERS.items() if (value := getattr(wanted, name)) not in (None, ())}
    rest, found = replace(wanted, ids=None, task_types=(), queues=(), user=None), letters.filter(**own)
    if (any_of := rest.any_of) and "type_prefixes" in any_of:
        rest, found = replace(rest, any_of=None), found.filter(condition_of(any_of, task="task_id"))
    if rest == TaskFilter():
        return found, notes
    return found.filter(task_id__in=matching(rest).values("pk")), notes
