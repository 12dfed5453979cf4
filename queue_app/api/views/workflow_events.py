"""Events of one workflow as a stream of server-sent events."""

import json
import uuid
from typing import Any, Final

from django.core.serializers.json import DjangoJSONEncoder
from rest_framework.request import Request

from queue_app.api.base import accepts
from queue_app.api.serializers.control import EventQuery
from queue_app.api.views.events import EventStream
from queue_app.api.views.workflows import find_workflow
from queue_app.api.waiting import limited
from queue_app.core.events import Event
from queue_app.models import Workflow
from queue_app.sql.database import alias
from queue_app.sql.workflow_graph import members

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
        problems=(501,),
    )  # fmt: skip
    def get(self, request: Request, workflow_id: str) -> Any:
        """Stream the events of a workflow's tasks as server-sent events, and ``WorkflowChanged`` for the whole.

        ``WorkflowChanged`` has the state, and whether the workflow is paused or held; it comes at the beginning, and
        after each change. Takes the filters of ``/api/v1/events``. Needs an ASGI server.
        """
        return self.streamed(request, OneWorkflow(find_workflow(request, workflow_id).pk))
