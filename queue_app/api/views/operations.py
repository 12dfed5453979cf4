"""Watch and cancel operations: actions on many tasks or dead letters that run in the background."""

from __future__ import annotations

from http import HTTPStatus
from typing import Final

from rest_framework.request import Request
from rest_framework.response import Response

from queue_app.api import representation
from queue_app.api.base import ApiView, parse_id
from queue_app.api.permissions import is_staff_with, require_staff
from queue_app.exceptions import OperationNotFound
from queue_app.models import Operation
from queue_app.models.operation import PERMISSIONS, OperationKind, OperationTarget
from queue_app.services.operations.request import cancel_operation, get_operation

REPLAY: Final = "queue_app.replay_deadletter"


class OperationView(ApiView):
    """An action on many tasks or dead letters."""

    def get(self, request: Request, operation_id: str) -> Response:
        """Inspect an operation: its state and its progress."""
        return Response(representation.operation(_find(request, operation_id), request.user))

    def delete(self, request: Request, operation_id: str) -> Response:
        """Cancel an operation.

        What it has already changed stays changed.
        """
        found, by = _find(request, operation_id), self.username(request)
        if found.by != by and not is_staff_with(request, "queue_app.change_operation"):
            require_staff(request, PERMISSIONS[OperationKind(found.kind)])
        with self.recording(request):
            operation = cancel_operation(found.id, by=by)
        return Response(representation.operation(operation, request.user))


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
