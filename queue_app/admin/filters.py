"""Filters and search of the lists of tasks and dead letters."""

from __future__ import annotations

import re
import uuid
from typing import Any, cast

from django.contrib import admin
from django.contrib.admin.options import IncorrectLookupParameters
from django.db.models import Model, Q, QuerySet
from django.http import HttpRequest
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from queue_app.admin.task_search import MAX_TYPES, SINCE, known_types
from queue_app.core.priorities import Band
from queue_app.core.states import PENDING_NAME, Status
from queue_app.models import Queue
from queue_app.models.querysets import TaskQuerySet
from queue_app.models.queue import NAME_PATTERN

#: Maximum number of names in the queue filter. The search finds the others.
MAX_QUEUES = 200
LETTER_SEARCH_HELP = _("A task id, the beginning of a task type, or a user name; user:NAME and type:NAME say which.")
_NAME = re.compile(NAME_PATTERN)
_BANDS = {band.label: band.value for band in Band}


class ChoiceFilter(admin.SimpleListFilter):
    """A filter by one of some names; an unknown name leads back to the unfiltered list."""

    def names(self) -> list[str]:
        """Return the names to offer."""
        raise NotImplementedError

    def keep(self, queryset: QuerySet[Any], value: str) -> QuerySet[Any]:
        """Keep the rows of a name. Raises ``LookupError`` or ``ValueError`` for an unknown name."""
        raise NotImplementedError

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        """Return the names, each with its label."""
        return [(name, name.replace("_", " ")) for name in self.names()]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """Keep the rows of the chosen name."""
        value = self.value()
        if not value:
            return queryset
        try:
            return self.keep(queryset, value)
        except (LookupError, ValueError) as error:
            raise IncorrectLookupParameters from error


class OpenFilter(ChoiceFilter):
    """A filter by a name that may be missing from the menu. Django would ignore it if the menu were empty."""

    def has_output(self) -> bool:
        """Whether the filter is applied and shown."""
        return super().has_output() or bool(self.value())


class StatusFilter(ChoiceFilter):
    """Tasks by status; ``pending`` means scheduled, queued or executing."""

    title = _("status")
    parameter_name = "status"

    def names(self) -> list[str]:
        """Return all states, ``pending`` first."""
        return [PENDING_NAME, *Status]

    def keep(self, queryset: QuerySet[Any], value: str) -> QuerySet[Any]:
        """Keep the tasks in a status."""
        return cast("TaskQuerySet", queryset).in_status(value)


class BandFilter(ChoiceFilter):
    """Rows by priority band."""

    title = _("priority")
    parameter_name = "priority"

    def names(self) -> list[str]:
        """Return the bands, most urgent first."""
        return list(_BANDS)

    def keep(self, queryset: QuerySet[Any], value: str) -> QuerySet[Any]:
        """Keep the rows of a band."""
        return queryset.filter(priority=_BANDS[value])


class QueueFilter(OpenFilter):
    """Rows by queue. The names come from the table of queues; distinct names of all tasks would cost a scan."""

    title = _("queue")
    parameter_name = "queue"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        """Return the known queues."""
        return [(name, name) for name in Queue.objects.order_by("name").values_list("name", flat=True)[:MAX_QUEUES]]

    def keep(self, queryset: QuerySet[Any], value: str) -> QuerySet[Any]:
        """Keep the rows of a queue, which may be deleted."""
        if not _NAME.match(value):
            raise ValueError(value)
        return queryset.filter(queue=value)


class TypeFilter(OpenFilter):
    """Tasks by type. The names come from the code and the live workers."""

    title = _("task type")
    parameter_name = "task_type"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        """Return the known types, each by the name of its function."""
        return [(name, name.rpartition(".")[2]) for name in known_types()[:MAX_TYPES]]

    def keep(self, queryset: QuerySet[Any], value: str) -> QuerySet[Any]:
        """Keep the tasks of a type, which may be unknown."""
        return queryset.filter(task_type=value)


class SinceFilter(ChoiceFilter):
    """Tasks by age."""

    title = _("created in the last")
    parameter_name = "since"

    def names(self) -> list[str]:
        """Return the lengths of time."""
        return list(SINCE)

    def keep(self, queryset: QuerySet[Any], value: str) -> QuerySet[Any]:
        """Keep the tasks created since then."""
        since = timezone.now() - SINCE[value]
        # Ids begin with their time, so the primary key bounds the scan. The minute allows for clocks that differ.
        first = uuid.UUID(int=max(0, int((since.timestamp() - 60) * 1000)) << 80)
        return queryset.filter(created_at__gte=since, id__gte=first)


def search[M: Model](queryset: QuerySet[M], term: str, *, id_field: str = "pk") -> QuerySet[M]:
    """Return the rows that match a search term: a task id, a user, or the beginning of a task type."""
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
