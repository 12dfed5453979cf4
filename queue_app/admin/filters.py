"""Filters and search of the lists of tasks and dead letters."""

import re
from collections.abc import Callable, Iterable
from typing import Any, Final, cast

from django.contrib import admin
from django.contrib.admin.options import IncorrectLookupParameters
from django.db.models import F, Model, Q, QuerySet
from django.db.models.functions import Coalesce, Now
from django.http import HttpRequest
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from queue_app.admin.task_search import BANDS, ENDED, FAILED_ANY, MAX_TYPES, NARROW, SINCE
from queue_app.core.ids import CLOCKS_DIFFER, first_at
from queue_app.core.shared import Shared
from queue_app.core.states import PENDING_NAME, Status
from queue_app.dashboard import labels
from queue_app.dashboard.translation import word
from queue_app.diagnose.waits import wait_codes
from queue_app.models import Queue, Schedule, Worker, Workflow
from queue_app.models.querysets import TaskQuerySet
from queue_app.models.queue import NAME_PATTERN
from queue_app.models.worker import LIVING, WorkerStatus
from queue_app.services.read.search import find, known_types
from queue_app.services.read.task_filter import TaskFilter, condition_of, matching

#: Maximum number of names in the queue filter. The search finds the others.
MAX_QUEUES = 200
LETTER_SEARCH_HELP = _("What you see: the short id of the task, part of its type, queue, user, words of the message.")
_NAME = re.compile(NAME_PATTERN)


def choice_filter(
    title: Any,
    parameter: str,
    choices: Callable[[], Iterable[str]],
    keep: Callable[[QuerySet[Any], str], QuerySet[Any]] | None = None,
    label: Callable[[str], str] = word,
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

    title, parameter_name = _("shown"), "shown"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        return [("ended", _("stopped or dead")), ("all", _("all workers"))]

    def choices(self, changelist: Any) -> Any:
        first, *rest = super().choices(changelist)
        return [first | {"display": _("living")}, *rest]

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
    return {str(worker_id): name for worker_id, name in found[:MAX_QUEUES]}


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


def _sorted_later(rows: QuerySet[Any], name: str) -> QuerySet[Any]:
    """Check the name only: the list sorts when all filters have narrowed it."""
    SORTED[name]
    return rows


StatusFilter = choice_filter(
    _("status"),
    "status",
    lambda: [PENDING_NAME, *Status, FAILED_ANY],
    label=lambda name: str(_("failed or dead letter")) if name == FAILED_ANY else word(name),
)
#: The effective band: what the lists, the overview's counts and the targets go by.
BandFilter = choice_filter(_("priority"), "priority", lambda: BANDS)
#: A dead letter keeps the band of its task.
LetterBandFilter = choice_filter(
    _("priority"), "priority", lambda: BANDS, lambda rows, value: rows.filter(priority=BANDS[value])
)
#: The names come from the table of queues; distinct names of all tasks would cost a scan.
QueueFilter = choice_filter(
    _("queue"),
    "queue",
    lambda: Queue.objects.order_by("name").values_list("name", flat=True)[:MAX_QUEUES],
    _of_queue,
    label=str,
)
#: The names come from the code and the live workers.
TypeFilter = choice_filter(
    _("task type"),
    "task_type",
    lambda: known_types()[:MAX_TYPES],
    label=lambda name: name.rpartition(".")[2],
)
SinceFilter = choice_filter(_("created in the last"), "since", lambda: SINCE, _since)
EndedFilter = choice_filter(_("ended in the last"), "ended", lambda: ENDED)
#: The address names the worker by its id; the menu by its name.
WorkerFilter = choice_filter(
    _("worker"), "worker_id", _workers.get, label=lambda value: _workers.get().get(value, value)
)


class WorkflowFilter(choice_filter(_("workflow"), "workflow_id", lambda: ())):  # type: ignore[misc]  # made by a function
    """The only choice is the workflow that the address names; links and the search name it."""

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        meant_id = labels.id_of(request.GET.get("workflow_id", ""))
        flow = Workflow.objects.filter(pk=meant_id).first() if meant_id else None
        return [(str(flow.pk), flow.name)] if flow else []


ScheduleFilter = choice_filter(
    _("schedule"),
    "schedule",
    lambda: Schedule.objects.order_by("name").values_list("name", flat=True)[:MAX_QUEUES],
    label=str,
)
ErrorClassFilter = choice_filter(_("error"), "error_class", lambda: (), label=str)  # links name the class


class SortFilter(choice_filter(_("sort by"), "sort", lambda: SORTED, _sorted_later)):  # type: ignore[misc]  # as above
    """The order of the list; without a choice the newest come first."""

    def choices(self, changelist: Any) -> Any:
        first, *rest = super().choices(changelist)
        return [first | {"display": _("newest")}, *rest]


WaitFilter = choice_filter(_("waits because"), "wait", wait_codes)


def search[M: Model](
    queryset: QuerySet[M], term: str, *, id_field: str = "pk", may_view_payload: bool = False
) -> QuerySet[M]:
    """Return the rows that match a search term: what a person sees of them, or ``user:`` or ``type:`` with a name."""
    term = term.strip()
    if not term:
        return queryset
    if meant_id := labels.id_of(term):
        return queryset.filter(**{id_field: meant_id})
    kind, separator, value = term.partition(":")
    if separator and kind == "user":
        return queryset.filter(user=value.strip())
    if separator and kind == "type":
        return queryset.filter(task_type__startswith=value.strip())
    found = find(term, may_view_payload=may_view_payload)
    return queryset.filter(condition_of(found.any_of, task=id_field) | Q(user=term))
