"""Watch and cancel what goes on in the background: actions on many tasks or dead letters."""

from __future__ import annotations

from typing import Final

from rest_framework.exceptions import PermissionDenied
from rest_framework.request import Request
from rest_framework.response import Response

from queue_app.api import representation
from queue_app.api.base import ApiView
from queue_app.api.fields import task_id as parse_id
from queue_app.api.views.dead_letters import REPLAY, is_staff_with
from queue_app.exceptions import InvalidTaskData, OperationNotFound
from queue_app.models import Operation
from queue_app.models.operation import PERMISSIONS, OperationKind, OperationTarget
from queue_app.services.operations.request import cancel_operation, get_operation

VIEW: Final = "queue_app.view_operation"
CHANGE: Final = "queue_app.change_operation"


class OperationView(ApiView):
    """An action on many tasks or dead letters."""

    def get(self, request: Request, operation_id: str) -> Response:
        """Inspect an operation: its state, and how far it has come."""
        return Response(representation.operation(_find(request, operation_id), request.user))

    def delete(self, request: Request, operation_id: str) -> Response:
        """Cancel an operation; what it has changed stays changed."""
        found, by = _find(request, operation_id), self.username(request)
        permission = PERMISSIONS[OperationKind(found.kind)]
        if found.by != by and not (is_staff_with(request, CHANGE) or is_staff_with(request, permission)):
            raise PermissionDenied(f"This needs the permission {permission}.")
        with self.recording(request):
            operation = cancel_operation(found.id, by=by)
        return Response(representation.operation(operation, request.user))


def _find(request: Request, name: str) -> Operation:
    """Return the operation in the address; it is missing to whoever may not see it.

    Everybody sees their own, staff with the permission all, and staff who may replay dead
    letters all replays of them.
    """
    try:
        found = get_operation(parse_id(name, "operation_id"))
    except InvalidTaskData:
        raise OperationNotFound(name) from None
    may_see = (
        found.by == request.user.get_username()
        or is_staff_with(request, VIEW)
        or (found.target == OperationTarget.DEAD_LETTERS and is_staff_with(request, REPLAY))
    )
    if not may_see:
        raise OperationNotFound(name)
    return found
