"""Start, watch and cancel operations: actions on many tasks or dead letters that run in the background."""

from dataclasses import replace
from functools import partial
from http import HTTPStatus
from typing import Any, Final

from rest_framework.request import Request
from rest_framework.response import Response

from queue_app.api import representation
from queue_app.api.access import check_scope, is_staff_with, require_staff, visible_tasks
from queue_app.api.base import BY_CONTENT, ApiView, accepts, for_staff, parse_id
from queue_app.api.headers import KEY_META
from queue_app.api.paging import each, paged
from queue_app.api.serializers.tasks import IdPage, TaskSelection, options_of
from queue_app.exceptions import OperationNotFound
from queue_app.models import AuditEntry, Operation
from queue_app.models.operation import PERMISSIONS, OperationKind, OperationTarget
from queue_app.services.operations.request import (
    Action,
    OperationOptions,
    cancel_operation,
    get_operation,
    preview_operation,
    start_operation,
)
from queue_app.services.operations.run import advance_for
from queue_app.services.read.dead_letters import Preview
from queue_app.services.read.task_filter import TaskFilter

REPLAY: Final = "queue_app.replay_deadletter"
#: Time in which an action on few tasks can finish before the answer.
AT_ONCE_SECONDS: Final = 0.2
#: Actions that start tasks early or again, or encrypt them again; only staff may request them.
FOR_STAFF: Final = frozenset(
    {OperationKind.REPLAY, OperationKind.RETRY, OperationKind.RUN_NOW, OperationKind.REENCRYPT}
)


class BulkActionView(ApiView):
    @accepts(
        BY_CONTENT, body=TaskSelection, throttle="heavy", once=True, id="act_on_tasks", tag="tasks", answer="Operation",
        status=202, also={200: "Preview"},
    )  # fmt: skip
    def post(self, request: Request) -> Any:
        """Cancel, reprioritise, replay, retry, run or delete many tasks.

        Selects tasks by ``ids`` or ``filter`` and answers 202 with an operation; with ``dry_run`` it only counts them.
        A caller without the permission for the action reaches only their own tasks. Only staff may start tasks early
        or again.
        """
        body = self.read_body(request)
        action, options = Action(kind=body["action"], band=body.get("priority")), options_of(OperationOptions, body)
        check_scope(request, PERMISSIONS[action.kind].removeprefix("queue_app."))
        wanted = self._allowed(request, action.kind, body.get("filter") or TaskFilter(ids=body.get("ids")))
        if body["dry_run"]:
            return previewed(preview_operation(action, wanted, options))
        with self.recording(request):
            operation = start_operation(action, wanted, options, by=self.username(request), reason=body["reason"])
        seconds = 0.0 if KEY_META in request.META else AT_ONCE_SECONDS  # a key holds one transaction open
        operation = advance_for(operation.id, seconds)
        return accepted(self, request, operation, "/tasks/bulk-actions")

    def _allowed(self, request: Request, kind: OperationKind, wanted: TaskFilter) -> TaskFilter:
        if is_staff_with(request, PERMISSIONS[kind], "queue_app.view_task"):
            visible_tasks(request.user, wanted)
            return wanted
        if kind in FOR_STAFF:
            require_staff(request, PERMISSIONS[kind])
        own = self.username(request)
        return replace(wanted, user=own) if wanted.user in (None, own) else TaskFilter(ids=[])


class OperationListView(ApiView):
    @accepts("view_operation", query=IdPage, id="list_operations", answer="OperationPage")
    def get(self, request: Request) -> dict[str, Any]:
        """List operations, newest first.

        Callers see their own; staff with queue_app.view_operation see all.
        """
        found = Operation.objects.all()
        if not is_staff_with(request, "queue_app.view_operation"):
            found = found.filter(by=self.username(request))
        shown = each(partial(representation.operation, user=request.user))
        return paged(request, found, self.read_query(request), "-id", shown)


class AuditView(ApiView):
    @for_staff("view_auditentry", query=IdPage, id="list_audit_entries", tag="staff", answer="AuditEntryPage")
    def get(self, request: Request) -> dict[str, Any]:
        """List what people changed in the admin, over the API and by commands, newest first."""
        shown = each(representation.audit_entry)
        return paged(request, AuditEntry.objects.all(), self.read_query(request), "-id", shown)


class OperationView(ApiView):
    @accepts("view_operation", id="get_operation", answer="Operation")
    def get(self, request: Request, operation_id: str) -> dict[str, Any]:
        """Inspect an operation: its state and its progress."""
        return representation.operation(_find(request, operation_id), request.user)

    @accepts("change_operation", id="cancel_operation", answer="Operation", problems=(409,))
    def delete(self, request: Request, operation_id: str) -> dict[str, Any]:
        """Cancel an operation.

        What it has already changed stays changed.
        """
        found, by = _find(request, operation_id), self.username(request)
        if found.by != by and not is_staff_with(request, "queue_app.change_operation"):
            require_staff(request, PERMISSIONS[OperationKind(found.kind)])
        with self.recording(request):
            operation = cancel_operation(found.id, by=by)
        return representation.operation(operation, request.user)


def _find(request: Request, name: str) -> Operation:
    """Return an operation that the caller may see.

    Callers see their own. Staff see all with the permission for it, and replays of dead letters if they may replay.
    """
    found = get_operation(parse_id(name, OperationNotFound(name)))
    may_see = (
        found.by == request.user.get_username()
        or is_staff_with(request, "queue_app.view_operation")
        or (found.target == OperationTarget.DEAD_LETTERS and is_staff_with(request, REPLAY))
    )
    if not may_see:
        raise OperationNotFound(name)
    return found


def accepted(view: ApiView, request: Request, operation: Operation, suffix: str) -> Response:
    """Return 202 with the operation and its address; ``suffix`` ends the path of the request."""
    base = request.path.rstrip("/").removesuffix(suffix)
    location = {"Location": view.address(request, f"{base}/operations/{operation.id}")}
    return Response(representation.operation(operation, request.user), status=HTTPStatus.ACCEPTED, headers=location)


def previewed(found: Preview) -> Response:
    """Return the answer to a dry run."""
    return Response({"dry_run": True, "count": found.count, "sample": found.sample})
