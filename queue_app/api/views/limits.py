"""Limits of task types and keys, and pauses of them and of everything."""

from __future__ import annotations

from datetime import datetime
from http import HTTPStatus
from typing import Any

from rest_framework.exceptions import PermissionDenied
from rest_framework.permissions import IsAuthenticated
from rest_framework.request import Request
from rest_framework.response import Response

from queue_app.api import limits as representation
from queue_app.api.base import ApiView
from queue_app.api.limits import EVERYTHING, PauseOf, parse_limit, parse_new_limit, parse_pause_of
from queue_app.exceptions import LimitNotFound
from queue_app.models import Limit, RuntimeSettings
from queue_app.models.limit import Scope
from queue_app.services.control import audit
from queue_app.services.control.limits import create_limit, delete_limit, update_limit
from queue_app.services.control.pause import (
    pause_everything,
    pause_key,
    pause_type,
    resume_everything,
    resume_key,
    resume_type,
)
from queue_app.sql.database import atomic

#: There are about as many as task types; a list of more would be a mistake somewhere else.
MAX_LISTED = 1000
ID_DIGITS = 18


def require(request: Request, codename: str) -> None:
    """Refuse everybody but staff with this permission of the queue."""
    if not (request.user.is_staff and request.user.has_perm(f"queue_app.{codename}")):
        raise PermissionDenied(f"This needs the permission queue_app.{codename}.")


class LimitListView(ApiView):
    """The limits of task types and of concurrency keys."""

    permission_classes = (IsAuthenticated,)

    def get(self, request: Request) -> Response:
        """List the limits of task types and keys."""
        require(request, "view_limit")
        return Response({"results": [representation.limit(found) for found in Limit.objects.all()[:MAX_LISTED]]})

    def post(self, request: Request) -> Response:
        """Limit a task type or a key: how many run at once, how many start in a period, how far apart."""
        require(request, "add_limit")
        scope, name, changes = parse_new_limit(self.json_body(request))
        with atomic():
            found = create_limit(scope, name, changes)
            _record(request, "limit.add", found, changes)
        return Response(representation.limit(found), status=HTTPStatus.CREATED)


class LimitView(ApiView):
    """The limits of one task type or key."""

    permission_classes = (IsAuthenticated,)

    def get(self, request: Request, limit_id: str) -> Response:
        """Inspect limits."""
        require(request, "view_limit")
        found = Limit.objects.filter(pk=_parse_id(limit_id)).first()
        if found is None:
            raise LimitNotFound(limit_id)
        return Response(representation.limit(found))

    def patch(self, request: Request, limit_id: str) -> Response:
        """Change limits; what is left out stays, null lifts. Holds from the next claim on."""
        require(request, "change_limit")
        changes = parse_limit(self.json_body(request))
        with atomic():
            found = update_limit(_parse_id(limit_id), changes)
            _record(request, "limit.change", found, changes)
        return Response(representation.limit(found))

    def delete(self, request: Request, limit_id: str) -> Response:
        """Lift all limits of the task type or key; a pause too."""
        require(request, "delete_limit")
        with atomic():
            found = delete_limit(_parse_id(limit_id))
            _record(request, "limit.delete", found)
        return Response({"id": int(limit_id), "deleted": True})


class _PauseOfView(ApiView):
    permission_classes = (IsAuthenticated,)

    def allowed(self, request: Request, *, resume: bool) -> PauseOf:
        """Return what the body names, for whoever may pause it."""
        if not request.user.is_staff:
            raise PermissionDenied("This needs the permission queue_app.pause_limit.")
        asked = parse_pause_of(self.json_body(request), resume=resume)
        require(request, "pause_queue" if asked.scope == EVERYTHING else "pause_limit")
        return asked


class PauseOfView(_PauseOfView):
    """Pause a task type, a key, or everything."""

    def post(self, request: Request) -> Response:
        """Pause by `scope` (`type`, `key` with a `name`, or `everything`), with `reason` and `resume_at`."""
        asked = self.allowed(request, resume=False)
        options: Any = {
            "by": self.username(request),
            "reason": asked.pause.reason,
            "resume_at": asked.pause.resume_at,
        }
        found: Limit | RuntimeSettings
        with atomic():
            if asked.scope == EVERYTHING:
                found = pause_everything(**options)
            else:
                found = (pause_type if asked.scope == Scope.TYPE else pause_key)(asked.name, **options)
            _record(request, "pause", found, reason=asked.pause.reason)
        return Response(representation.pause(found))


class ResumeOfView(_PauseOfView):
    """Resume a task type, a key, or everything."""

    def post(self, request: Request) -> Response:
        """Resume by `scope` and `name`, as they were paused."""
        asked = self.allowed(request, resume=True)
        found: Limit | RuntimeSettings | None
        with atomic():
            if asked.scope == EVERYTHING:
                found = resume_everything()
            else:
                found = (resume_type if asked.scope == Scope.TYPE else resume_key)(asked.name)
            if found is None:
                raise LimitNotFound(asked.name)
            _record(request, "resume", found)
        return Response(representation.pause(found))


def _parse_id(text: str) -> int:
    """Return the id in the address; what is no number is missing."""
    if not (text.isascii() and text.isdigit() and len(text) <= ID_DIGITS):
        raise LimitNotFound(text)
    return int(text)


def _record(
    request: Request,
    action: str,
    found: Limit | RuntimeSettings,
    changes: dict[str, Any] | None = None,
    reason: str = "",
) -> None:
    target, name = ("limit", str(found)) if isinstance(found, Limit) else ("settings", EVERYTHING)
    by = request.user.get_username()
    audit.record(action, target, [name], by=by, via=audit.API, after=shown(changes or {}), reason=reason)


def shown(changes: dict[str, Any]) -> dict[str, Any]:
    """Return changes as JSON can hold them."""
    return {name: str(value) if isinstance(value, datetime) else value for name, value in changes.items()}
