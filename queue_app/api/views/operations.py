"""Watch and cancel what goes on in the background: actions on many tasks, replays of many dead letters."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from rest_framework.exceptions import PermissionDenied
from rest_framework.request import Request
from rest_framework.response import Response

from queue_app.api import representation
from queue_app.api.base import ApiView
from queue_app.api.fields import task_id as parse_id
from queue_app.api.views.dead_letters import REPLAY, is_staff_with
from queue_app.exceptions import InvalidTaskData, OperationNotFound
from queue_app.models import Operation, ReplayOperation
from queue_app.services import operations, replay_many

VIEW_OPERATIONS, VIEW_REPLAYS = "queue_app.view_operation", "queue_app.view_replayoperation"
CHANGE = "queue_app.change_operation"


class OperationView(ApiView):
    """An action on many tasks, or a replay of many dead letters."""

    def get(self, request: Request, operation_id: str) -> Response:
        """Inspect an operation: its state, and how far it has come."""
        return Response(_shown(_find(request, operation_id)))

    def delete(self, request: Request, operation_id: str) -> Response:
        """Cancel an operation; what it has changed stays changed."""
        found, by = _find(request, operation_id), self.username(request)
        if isinstance(found, ReplayOperation):
            if not is_staff_with(request, REPLAY):
                raise PermissionDenied(f"This needs the permission {REPLAY}.")
            with self.recording(request):
                replay = replay_many.cancel_replay(found.id, by=by)
            return Response(_shown(replay))
        if found.by != by and not is_staff_with(request, CHANGE):
            raise PermissionDenied(f"This needs the permission {CHANGE}.")
        with self.recording(request):
            operation = operations.cancel_operation(found.id, by=by)
        return Response(_shown(operation))


def _find(request: Request, name: str) -> Operation | ReplayOperation:
    """Return the operation in the address; it is missing to whoever may not see it."""
    try:
        operation_id: UUID = parse_id(name, "operation_id")
    except InvalidTaskData:
        raise OperationNotFound(name) from None
    if is_staff_with(request, VIEW_REPLAYS) or is_staff_with(request, REPLAY):
        try:
            return replay_many.get_operation(operation_id)
        except OperationNotFound:
            pass
    found = operations.get_operation(operation_id)
    if found.by != request.user.get_username() and not is_staff_with(request, VIEW_OPERATIONS):
        raise OperationNotFound(name)
    return found


def _shown(found: Any) -> dict[str, Any]:
    if isinstance(found, ReplayOperation):
        return representation.operation(found)
    return representation.action(found)
