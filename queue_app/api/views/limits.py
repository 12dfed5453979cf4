"""Limits of task types and keys, and pauses of a task type, a key or everything."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from rest_framework.exceptions import PermissionDenied
from rest_framework.request import Request

from queue_app.api import representation
from queue_app.api.access import check_scope, is_staff_with, require_staff
from queue_app.api.base import BY_CONTENT, ApiView, accepts, for_staff, parse_number
from queue_app.api.paging import each, paged
from queue_app.api.serializers import control as serializers
from queue_app.api.serializers.tasks import NumberPage
from queue_app.exceptions import LimitNotFound
from queue_app.models import Limit, RuntimeSettings
from queue_app.services.control import audit, pause
from queue_app.services.control.limits import create_limit, delete_limit, update_limit
from queue_app.services.control.queues import apply
from queue_app.sql.database import atomic


class LimitListView(ApiView):
    @for_staff("view_limit", query=NumberPage, id="list_limits", answer="LimitPage")
    def get(self, request: Request) -> dict[str, Any]:
        """List the limits of task types and keys, oldest first."""
        query = self.read_query(request)
        return paged(request, Limit.objects.all(), query, "id", each(representation.limit))

    @for_staff("add_limit", body=serializers.NewLimit, once=True, id="add_limit", answer="Limit", status=201)
    def post(self, request: Request) -> dict[str, Any]:
        """Limit a task type or a key.

        Limits how many tasks run at once, how many start in a period, and the time between two starts.
        """
        changes = self.read_body(request)
        scope, name = changes.pop("scope"), changes.pop("name")
        with atomic():
            found = create_limit(scope, name, changes)
            _record(request, "limit.add", found, changes)
        return representation.limit(found)


class LimitView(ApiView):
    @for_staff("view_limit", id="get_limit", answer="Limit")
    def get(self, request: Request, limit_id: str) -> dict[str, Any]:
        """Inspect the limits of a task type or key."""
        found = Limit.objects.filter(pk=parse_number(limit_id, LimitNotFound(limit_id))).first()
        if found is None:
            raise LimitNotFound(limit_id)
        return representation.limit(found)

    @for_staff("change_limit", body=serializers.LimitEdit, id="edit_limit", answer="Limit")
    def patch(self, request: Request, limit_id: str) -> dict[str, Any]:
        """Change the limits of a task type or key.

        A field that is left out keeps its value; null removes the limit. The change applies from the next claim on.
        """
        changes = self.read_body(request)
        with atomic():
            found = update_limit(parse_number(limit_id, LimitNotFound(limit_id)), changes)
            _record(request, "limit.change", found, changes)
        return representation.limit(found)

    @for_staff("delete_limit", id="lift_limit", answer="Deleted")
    def delete(self, request: Request, limit_id: str) -> dict[str, Any]:
        """Remove all limits of a task type or key, and its pause."""
        with atomic():
            found = delete_limit(parse_number(limit_id, LimitNotFound(limit_id)))
            _record(request, "limit.delete", found)
        return {"id": int(limit_id), "deleted": True}


class OverallLimitsView(ApiView):
    @for_staff("view_runtimesettings", id="get_overall_limits", answer="OverallLimits")
    def get(self, request: Request) -> dict[str, Any]:
        """Inspect the limits over all queues."""
        found = RuntimeSettings.objects.filter(pk=1).first() or RuntimeSettings()
        return representation.overall(found)

    @for_staff("change_runtimesettings", body=serializers.OverallEdit, id="edit_overall_limits", answer="OverallLimits")
    def patch(self, request: Request) -> dict[str, Any]:
        """Change the limits over all queues, with a ``reason`` for the audit log.

        A field that is left out keeps its value; null removes the limit. The change applies from the next claim on.
        """
        changes = self.read_body(request)
        reason = changes.pop("reason")
        (found,) = apply({pause.EVERYTHING: changes}, by=self.username(request), via=audit.API, reason=reason)
        return representation.overall(found)


class _PauseView(ApiView):
    def read(self, request: Request) -> tuple[str, list[str], dict[str, Any]]:
        """Return scope, name (none for everything) and other fields of the body, if the caller may pause the scope."""
        if not any(is_staff_with(request, f"queue_app.{name}") for name in ("pause_limit", "pause_queue")):
            raise PermissionDenied("This needs staff status and the permission queue_app.pause_limit.")
        options = self.read_body(request)
        scope, names = options.pop("scope"), [options.pop("name")] if "name" in options else []
        permission = "pause_queue" if scope == pause.EVERYTHING else "pause_limit"
        check_scope(request, permission)
        require_staff(request, f"queue_app.{permission}")
        return scope, names, options


class PauseTypeOrKeyView(_PauseView):
    @accepts(BY_CONTENT, body=serializers.Pause, id="pause", answer="PauseState")
    def post(self, request: Request) -> dict[str, Any]:
        """Pause a task type, a key, or everything.

        The body names a ``scope`` (``type`` or ``key`` with a ``name``, or ``everything``) and may give a ``reason``
        and a time ``resume_at`` at which the pause ends.
        """
        scope, names, options = self.read(request)
        with atomic():
            found: Any = pause.BY_KIND[scope][0](*names, by=self.username(request), **options)
            _record(request, "pause", found, reason=options["reason"])
        return representation.pause(found)


class ResumeTypeOrKeyView(_PauseView):
    @accepts(BY_CONTENT, body=serializers.Resumption, id="resume", answer="PauseState", problems=(404,))
    def post(self, request: Request) -> dict[str, Any]:
        """Resume a task type, a key, or everything.

        The body names the ``scope`` and ``name`` that were paused.
        """
        scope, names, _ = self.read(request)
        with atomic():
            found: Any = pause.BY_KIND[scope][1](*names)
            if found is None:
                raise LimitNotFound(*names)
            _record(request, "resume", found)
        return representation.pause(found)


def _record(
    request: Request,
    action: str,
    found: Limit | RuntimeSettings,
    changes: Mapping[str, Any] | None = None,
    reason: str = "",
) -> None:
    target, name = ("limit", str(found)) if isinstance(found, Limit) else ("settings", pause.EVERYTHING)
    after = {key: str(value) if isinstance(value, datetime) else value for key, value in (changes or {}).items()}
    audit.record(action, target, [name], by=request.user.get_username(), via=audit.API, after=after, reason=reason)
