"""Addresses of older queues; include it before ``queue_app.urls``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from django.urls import re_path
from rest_framework.request import Request

from queue_app.api.access import may_view
from queue_app.api.base import accepts, for_staff
from queue_app.api.serializers.base import Field
from queue_app.api.serializers.control import EventQuery
from queue_app.api.serializers.kinds import choice, several
from queue_app.api.views.events import EventStream
from queue_app.api.views.queues import AdminQueueView, QueueStatsView, existing_queue
from queue_app.api.views.tasks import AdminTaskListView, AdminTaskPriorityView
from queue_app.core.events import Event, EventName
from queue_app.services.read.stats import admin_queue, queue_summary
from queue_app.sql.upkeep import totals

#: Our events -> their names.
EVENTS: Final[Mapping[str, str]] = {
    EventName.ACCEPTED: "ExecutionAccepted",
    EventName.REJECTED: "ExecutionRejected",
    EventName.STARTED: "ExecutionStarted",
    EventName.COMPLETED: "ExecutionCompleted",
    EventName.FAILED: "ExecutionFailed",
    EventName.TIMED_OUT: "ExecutionTimeout",
    EventName.CANCELLED: "ExecutionCancelled",
}


class ExecutionListView(AdminTaskListView):
    """The tasks of all users."""


class ExecutionPriorityView(AdminTaskPriorityView):
    """The priority of a waiting task."""


class ExecutionQueueView(AdminQueueView):
    """The queue as system A names it."""

    @for_staff("view_task")
    def get(self, request: Request) -> dict[str, Any]:
        """Return depth, running tasks, limit and counts by priority of all queues together."""
        found = admin_queue()
        return {
            "queue_depth": found["depth"],
            "active_count": found["active"],
            "max_concurrent": found["cap"],
            "by_priority": found["by_priority"],
        }


class ActionStatsView(QueueStatsView):
    """An action is the queue of its name."""

    @accepts("view_queue", permission=may_view("queue"))
    def get(self, request: Request, ref: str) -> dict[str, Any]:
        """Return length, running tasks, limit, oldest task and totals of the queue of an action."""
        found = queue_summary(existing_queue(ref))
        return {
            "action_ref": ref,
            "queue_length": found.depth,
            "active_count": found.active,
            "max_concurrent": found.max_concurrent,
            **totals(ref)._asdict(),
        }


_OURS: Final = {name: str(ours) for ours, name in EVENTS.items()}
_known: Final = choice([*_OURS, *EventName], "unknown_event")


class ExecutionEventQuery(EventQuery):
    """Names of events are theirs or ours."""

    event = several(Field(lambda value, name: _OURS.get(_known(value, name), value), {}), source="names")


class ExecutionNames:
    """Gives events their other names on the way to a reader."""

    def keep(self, found: list[Event]) -> list[Event]:
        """Return the events under their other names."""
        return [replace(event, name=EVENTS.get(event.name, event.name)) for event in found]

    def changes(self) -> bytes:
        """Return nothing more."""
        return b""


class ExecutionEventView(EventStream):
    """Events as systems A and B name them."""

    @accepts("view_task", query=ExecutionEventQuery, throttle="heavy")
    def get(self, request: Request) -> Any:
        """Stream the events of tasks under the names that executions had."""
        return self.streamed(request, ExecutionNames())


app_name = "queue_app_compat"
urlpatterns = [
    re_path(r"^api/v1/admin/executions/?\Z", ExecutionListView.as_view(), name="execution-list"),
    re_path(r"^api/v1/admin/executions/queue/?\Z", ExecutionQueueView.as_view(), name="execution-queue"),
    re_path(
        r"^api/v1/admin/executions/(?P<task_id>[^/]+)/priority/?\Z",
        ExecutionPriorityView.as_view(),
        name="execution-priority",
    ),
    re_path(r"^api/v1/actions/(?P<ref>[^/]+)/queue-stats/?\Z", ActionStatsView.as_view(), name="action-stats"),
    re_path(r"^api/v1/executions/events/?\Z", ExecutionEventView.as_view(), name="execution-events"),
]
