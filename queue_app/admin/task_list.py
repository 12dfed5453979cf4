"""The list of tasks: its filters and its search, and what it reads beside the rows."""

from __future__ import annotations

import re
import uuid
from typing import Any, cast

from django.contrib import admin
from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.admin.views.main import ChangeList
from django.db.models import Model, Q, QuerySet
from django.http import HttpRequest
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from queue_app.admin.task_search import MAX_TYPES, SINCE, known_types
from queue_app.core.priorities import Band
from queue_app.core.states import PENDING_NAME, Status
from queue_app.models import Queue, Task, Worker
from queue_app.models.querysets import TaskQuerySet
from queue_app.models.queue import NAME_PATTERN

#: A filter with more names than these helps nobody; the search finds the others.
MAX_QUEUES = 200
LETTER_SEARCH_HELP = _("A task id, the beginning of a task type, or a user name; user:NAME and type:NAME say which.")
_NAME = re.compile(NAME_PATTERN)


class StrictFilter(admin.SimpleListFilter):
    """A filter that holds also when it has no names to offer: Django would ignore it then, and list everything."""

    def has_output(self) -> bool:
        """Whether it is applied and shown."""
        return super().has_output() or bool(self.value())


class StatusFilter(admin.SimpleListFilter):
    """By status; ``pending`` is what has not ended."""

    title = _("status")
    parameter_name = "status"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        """Return all states, the composite first."""
        return [(PENDING_NAME, PENDING_NAME), *((status.value, status.value.replace("_", " ")) for status in Status)]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """Keep the tasks in the chosen status."""
        if not self.value():
            return queryset
        try:
            tasks: QuerySet[Any] = cast("TaskQuerySet", queryset).in_status(str(self.value()))
        except ValueError as error:
            raise IncorrectLookupParameters from error
        return tasks


class BandFilter(admin.SimpleListFilter):
    """By priority band."""

    title = _("priority")
    parameter_name = "priority"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        """Return the bands, most urgent first."""
        return [(band.label, band.label) for band in Band]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """Keep the tasks of the chosen band."""
        if not self.value():
            return queryset
        band = {band.label: band for band in Band}.get(str(self.value()))
        if band is None:
            raise IncorrectLookupParameters
        return queryset.filter(priority=band.value)


class QueueFilter(StrictFilter):
    """By queue: the names come from the queues, a look at all tasks would cost a scan."""

    title = _("queue")
    parameter_name = "queue"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        """Return the known queues."""
        return [(name, name) for name in Queue.objects.order_by("name").values_list("name", flat=True)[:MAX_QUEUES]]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """Keep the tasks of the chosen queue, which need not exist any more."""
        if not self.value():
            return queryset
        if not _NAME.match(str(self.value())):
            raise IncorrectLookupParameters
        return queryset.filter(queue=self.value())


class TypeFilter(StrictFilter):
    """By task type: the names come from the code and the live workers."""

    title = _("task type")
    parameter_name = "task_type"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        """Return the known types by their functions' names."""
        return [(name, name.rpartition(".")[2]) for name in known_types()[:MAX_TYPES]]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """Keep the tasks of the chosen type, which need not be known any more."""
        return queryset.filter(task_type=self.value()) if self.value() else queryset


class SinceFilter(admin.SimpleListFilter):
    """By when the task was created."""

    title = _("created in the last")
    parameter_name = "since"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        """Return some lengths of time."""
        return [(name, name) for name in SINCE]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """Keep the tasks that are no older."""
        if not self.value():
            return queryset
        length = SINCE.get(str(self.value()))
        if length is None:
            raise IncorrectLookupParameters
        since = timezone.now() - length
        # Ids carry their time, so the primary key ends the search; a minute for clocks that differ.
        first = uuid.UUID(int=max(0, int((since.timestamp() - 60) * 1000)) << 80)
        return queryset.filter(created_at__gte=since, id__gte=first)


def search[M: Model](queryset: QuerySet[M], term: str, *, id_field: str = "pk") -> QuerySet[M]:
    """Return the rows that a search term means: one id, a user's, or those whose type begins with it."""
    term = term.strip()
    if not term:
        return queryset
    try:
        return queryset.filter(**{id_field: uuid.UUID(term)})
    except ValueError:
        pass
    kind, separator, value = term.partition(":")
    if separator and kind == "user":
        return queryset.filter(user=value.strip())
    if separator and kind == "type":
        return queryset.filter(task_type__startswith=value.strip())
    return queryset.filter(Q(task_type__startswith=term) | Q(user=term))


class TaskChangeList(ChangeList):
    """A page of tasks with the names of their workers, read in one query for the whole page."""

    def get_results(self, request: HttpRequest) -> None:
        """Read the page, then the workers that it names."""
        super().get_results(request)
        tasks: list[Task] = list(self.result_list)
        names: dict[uuid.UUID, str] = {}
        if request.user.has_perm("queue_app.view_worker"):
            ids = {task.worker_id for task in tasks if task.worker_id is not None}
            names = dict(Worker.objects.filter(pk__in=ids).values_list("pk", "name")) if ids else {}
        for task in tasks:
            task.worker_name = names.get(task.worker_id) if task.worker_id else None  # type: ignore[attr-defined]
        self.result_list = tasks
