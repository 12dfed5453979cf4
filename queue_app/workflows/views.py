"""Workflows: submit, list, inspect and steer them. Users see their own; staff with the permission see all."""

import json
import uuid
from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from typing import Any, Final

from django.core.serializers.json import DjangoJSONEncoder
from django.db.models import QuerySet
from rest_framework.request import Request
from rest_framework.response import Response

from queue_app.api import representation
from queue_app.api.access import MaySubmit, is_staff_with, require_staff
from queue_app.api.base import ApiView, accepts, for_staff, parse_id, route
from queue_app.api.paging import each, paged
from queue_app.api.serializers.control import EventQuery, Nothing, WithReason
from queue_app.api.serializers.tasks import NewSignal, PriorityChange, WaitQuery
from queue_app.api.views.events import EventStream
from queue_app.api.waiting import limited
from queue_app.core.events import Event
from queue_app.exceptions import WorkflowNotFound
from queue_app.models import Workflow
from queue_app.models.workflow import STANDINGS
from queue_app.services.control import audit
from queue_app.services.lifecycle.steps import signal
from queue_app.services.notify.subscribe import wait_for_workflow
from queue_app.sql.database import alias
from queue_app.workflows import serializers, steer
from queue_app.workflows.read import graph_of
from queue_app.workflows.sql import members
from queue_app.workflows.store import submit_workflow

VIEW = "queue_app.view_workflow"
STEER = "queue_app.steer_workflow"
SEND = "queue_app.send_signal"


class WorkflowListView(ApiView):
    body_factor = 8

    @accepts("view_workflow", query=serializers.WorkflowQuery, id="list_workflows", answer="WorkflowPage")
    def get(self, request: Request) -> dict[str, Any]:
        """List workflows, newest first."""
        query = self.read_query(request)
        found = _visible(request)
        if "state" in query:
            found = found.filter(state=query["state"])
        if "standing" in query:
            found = found.filter(**STANDINGS[query["standing"]])
        page = paged(request, found, query, "-id", each(partial(serializers.workflow, user=request.user)))
        return page | {"next_before": page["next_cursor"]}

    @accepts(
        "add_task", body=serializers.WorkflowSubmission, throttle="submits", permission=MaySubmit, once=True,
        id="submit_workflow", answer="SubmittedWorkflow", status=201,
    )  # fmt: skip
    def post(self, request: Request) -> Response:
        """Submit a workflow: all of its tasks, or none.

        A task names what it waits for in ``after``, and refers to results in its parameters by
        ``{"$result": "name", "path": ["key"]}``. The answer has the id of each task by its name.
        """
        new = serializers.new_flow(self.read_body(request), self.username(request))
        workflow_id, tasks = submit_workflow(new)
        found = Workflow.objects.using(alias()).get(pk=workflow_id)
        content = serializers.workflow(found, request.user) | {"tasks": {name: t.id for name, t in tasks.items()}}
        location = {"Location": self.address(request, f"{request.path.rstrip('/')}/{workflow_id}")}
        return Response(content, status=HTTPStatus.CREATED, headers=location)


class WorkflowView(ApiView):
    @accepts("view_workflow", query=WaitQuery, id="get_workflow", answer="Workflow")
    def get(self, request: Request, workflow_id: str) -> dict[str, Any]:
        """Inspect a workflow, or wait for its end.

        ``wait`` works as for a task; the answer comes within about a second of the end.
        """
        seconds, found = self.read_query(request).get("wait"), find_workflow(request, workflow_id)
        waiting = partial(self.waiting, request, self.username(request))
        if seconds and found.finished_at is None and wait_for_workflow(found.pk, seconds, waiting):
            found = find_workflow(request, workflow_id)
        return serializers.workflow(found, request.user)


class GraphView(ApiView):
    @accepts("view_workflow", id="get_workflow_graph", answer="WorkflowGraph")
    def get(self, request: Request, workflow_id: str) -> dict[str, Any]:
        """Return the graph of a workflow.

        Tasks of one type that wait for the same groups are one group. Small workflows are not folded.
        """
        graph = graph_of(find_workflow(request, workflow_id).pk)
        groups = [
            {
                "number": group.number, "name": group.name, "task_type": group.task_type, "tasks": group.size,
                "task_id": group.first if group.size == 1 else None, "states": dict(group.counts),
                "after": dict(sorted((str(number), how) for number, how in group.parents.items())),
                "compensation": group.is_compensation, "critical": group.is_critical,
                "started_at": group.started_at, "finished_at": group.finished_at,
            }
            for group in graph.groups
        ]  # fmt: skip
        holding = [task.id for task in graph.holding]
        return {"tasks": graph.tasks, "edges": graph.edges, "groups": groups, "holding": holding}


class _SteeringView(ApiView):
    """An action on a whole workflow."""

    def _steer(self, request: Request, workflow_id: str, act: Callable[..., int]) -> dict[str, Any]:
        values = self.read_body(request)
        found = self.workflow(request, workflow_id)
        number = act(found.pk, **values, by=self.username(request), via=audit.API)
        found.refresh_from_db()
        return serializers.workflow(found, request.user) | {"changed": number}

    def workflow(self, request: Request, workflow_id: str) -> Workflow:
        """Return the workflow to steer."""
        return find_workflow(request, workflow_id)


class _OwnersToo(_SteeringView):
    """An action that users may take on their own workflows, as they may on their own tasks."""

    def workflow(self, request: Request, workflow_id: str) -> Workflow:
        """Return the workflow to steer, if it is the caller's own or staff steer it."""
        found = super().workflow(request, workflow_id)
        if found.user != self.username(request):
            require_staff(request, VIEW, STEER)
        return found


class CancelView(_OwnersToo):
    @accepts("steer_workflow", body=WithReason, once=True, id="cancel_workflow", answer="SteeredWorkflow")
    def post(self, request: Request, workflow_id: str) -> dict[str, Any]:
        """Cancel the pending tasks of a workflow, and compensate the completed ones. A second cancel changes nothing.

        Users may cancel their own workflows.
        """
        return self._steer(request, workflow_id, steer.cancel_workflow)


class StopUndoingView(_SteeringView):
    @for_staff(
        "stop_undoing_workflow", "view_workflow", body=WithReason, id="stop_undoing_workflow", answer="SteeredWorkflow",
        problems=(409,),
    )  # fmt: skip
    def post(self, request: Request, workflow_id: str) -> dict[str, Any]:
        """Give up the compensations that have not completed; ``gaps`` names the tasks that stay as they are."""
        return self._steer(request, workflow_id, steer.stop_undoing)


class SkipView(_SteeringView):
    @for_staff(
        "steer_workflow", "view_workflow", body=serializers.Skip, id="skip_workflow_task", answer="SteeredWorkflow",
        problems=(409,),
    )  # fmt: skip
    def post(self, request: Request, workflow_id: str) -> dict[str, Any]:
        """Give up a task that failed and holds its workflow; or say that a person did what it should have undone."""
        return self._steer(request, workflow_id, steer.skip_task)


class WorkflowPauseView(_SteeringView):
    @for_staff(
        "steer_workflow", "view_workflow", body=WithReason, id="pause_workflow", answer="SteeredWorkflow",
        problems=(409,),
    )  # fmt: skip
    def post(self, request: Request, workflow_id: str) -> dict[str, Any]:
        """Pause a workflow; running tasks finish."""
        return self._steer(request, workflow_id, steer.pause_workflow)


class WorkflowResumeView(_SteeringView):
    @for_staff(
        "steer_workflow", "view_workflow", body=Nothing, id="resume_workflow", answer="SteeredWorkflow", problems=(409,)
    )
    def post(self, request: Request, workflow_id: str) -> dict[str, Any]:
        """Resume a workflow."""
        return self._steer(request, workflow_id, steer.resume_workflow)


class SignalView(ApiView):
    @for_staff(
        "send_signal", "view_workflow", body=NewSignal, once=True, id="signal_workflow", answer="WorkflowSignal",
        status=201,
    )  # fmt: skip
    def post(self, request: Request, workflow_id: str) -> dict[str, Any]:
        """Send a signal to the first task of a workflow that waits for it; keep it until one does."""
        body = self.read_body(request)
        found = find_workflow(request, workflow_id)
        sent = signal(
            found.pk, body["name"], body["payload"], by=self.username(request), via=audit.API, reason=body["reason"]
        )
        return representation.sent(sent) | {"workflow_id": found.pk}


class PriorityView(_OwnersToo):
    @accepts("steer_workflow", body=PriorityChange, id="reprioritise_workflow", answer="SteeredWorkflow")
    def put(self, request: Request, workflow_id: str) -> dict[str, Any]:
        """Move the waiting tasks of a workflow to another band.

        Users may move their own workflows.
        """
        return self._steer(request, workflow_id, steer.reprioritise_workflow)


class RetryView(_SteeringView):
    @for_staff(
        "steer_workflow", "view_workflow", body=WithReason, once=True, id="retry_workflow", answer="SteeredWorkflow"
    )
    def post(self, request: Request, workflow_id: str) -> dict[str, Any]:
        """Retry the unsuccessful tasks of a workflow in their order; replay its dead letters."""
        return self._steer(request, workflow_id, steer.retry_workflow)


def _visible(request: Request) -> QuerySet[Workflow]:
    found = Workflow.objects.using(alias())
    return found.all() if is_staff_with(request, VIEW) else found.filter(user=request.user.get_username())


def find_workflow(request: Request, workflow_id: str) -> Workflow:
    """Return the workflow with the id in the address, if the caller may see it."""
    missing = WorkflowNotFound(f"There is no workflow {workflow_id[:40]!r}.")
    found = _visible(request).filter(pk=parse_id(workflow_id, missing)).first()
    if found is None:
        raise missing
    return found


# Events of one workflow as a stream of server-sent events.

#: The event that says that a workflow itself has changed, and the columns that it has.
WORKFLOW_CHANGED: Final = "WorkflowChanged"
WORKFLOW_COLUMNS: Final = ("state", "paused", "held_at", "finished_at")


class OneWorkflow:
    """Narrows a stream to one workflow: to the events of its tasks, and one when the workflow itself has changed.

    Events do not name workflows, so the rows are asked, once for all events that arrive together.
    """

    def __init__(self, workflow_id: uuid.UUID) -> None:
        self._id = workflow_id
        self._known: tuple[Any, ...] | None = None

    def keep(self, found: list[Event]) -> list[Event]:
        """Return the events of the tasks of the workflow."""
        ids = {event.task_id for event in found if event.task_id}
        if not ids:
            return []
        with limited():
            own = {str(task_id) for task_id in members(self._id, ids)}
        return [event for event in found if event.task_id in own]

    def changes(self) -> bytes:
        """Return an event if the workflow has changed since the last call; the first call returns its state."""
        with limited():
            row = Workflow.objects.using(alias()).filter(pk=self._id).values_list(*WORKFLOW_COLUMNS).first()
        if row is None or row == self._known:
            return b""
        self._known = row
        data = {"workflow_id": self._id, **dict(zip(WORKFLOW_COLUMNS, row, strict=True))}
        return f"event: {WORKFLOW_CHANGED}\ndata: {json.dumps(data, cls=DjangoJSONEncoder)}\n\n".encode()


class WorkflowEventView(EventStream):
    @accepts(
        "view_workflow", query=EventQuery, throttle="heavy", id="stream_workflow_events", answer="EventStream",
        problems=(501,), tag="workflow_events",
    )  # fmt: skip
    def get(self, request: Request, workflow_id: str) -> Any:
        """Stream the events of a workflow's tasks as server-sent events, and ``WorkflowChanged`` for the whole.

        ``WorkflowChanged`` has the state, and whether the workflow is paused or held; it comes at the beginning, and
        after each change. Takes the filters of ``/api/v1/events``. Needs an ASGI server.
        """
        return self.streamed(request, OneWorkflow(find_workflow(request, workflow_id).pk))


#: What ``queue_app.urls`` gets.
ADDRESSES: Final = (
    route("api/v1/workflows", WorkflowListView, "workflow-list"),
    route("api/v1/workflows/<workflow_id>", WorkflowView, "workflow"),
    route("api/v1/workflows/<workflow_id>/graph", GraphView, "workflow-graph"),
    route("api/v1/workflows/<workflow_id>/cancel", CancelView, "workflow-cancel"),
    route("api/v1/workflows/<workflow_id>/stop-undoing", StopUndoingView, "workflow-stop-undoing"),
    route("api/v1/workflows/<workflow_id>/skip", SkipView, "workflow-skip"),
    route("api/v1/workflows/<workflow_id>/pause", WorkflowPauseView, "workflow-pause"),
    route("api/v1/workflows/<workflow_id>/resume", WorkflowResumeView, "workflow-resume"),
    route("api/v1/workflows/<workflow_id>/retry", RetryView, "workflow-retry"),
    route("api/v1/workflows/<workflow_id>/priority", PriorityView, "workflow-priority"),
    route("api/v1/workflows/<workflow_id>/events", WorkflowEventView, "workflow-events"),
    route("api/v1/workflows/<workflow_id>/signal", SignalView, "workflow-signal"),
)
