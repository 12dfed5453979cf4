"""Permissions of the callers."""

from typing import Any

from rest_framework.exceptions import PermissionDenied
from rest_framework.permissions import BasePermission
from rest_framework.request import Request

from queue_app import conf

#: The permission to submit tasks.
SUBMIT = "queue_app.add_task"


def is_staff_with(request: Request, *permissions: str) -> bool:
    """Return whether the caller is staff and has all of the permissions."""
    return bool(request.user.is_staff and request.user.has_perms(permissions))


def require_staff(request: Request, *permissions: str) -> None:
    """Raise ``PermissionDenied`` unless the caller is staff and has all of the permissions."""
    if not is_staff_with(request, *permissions):
        raise PermissionDenied(_message(permissions))


def staff_with(*permissions: str) -> type[BasePermission]:
    """Return a permission class for staff with all of the permissions."""

    class StaffWith(BasePermission):
        message = _message(permissions)

        def has_permission(self, request: Request, view: Any) -> bool:
            return is_staff_with(request, *permissions)

    return StaffWith


class MaySubmit(BasePermission):
    """Who may submit tasks: callers with the permission or, if a setting says so, every caller."""

    message = f"This needs the permission {SUBMIT}."

    def has_permission(self, request: Request, view: Any) -> bool:
        return not conf.get().api.submit_needs_permission or request.user.has_perm(SUBMIT)


def may_view(model: str) -> type[BasePermission]:
    """Return a permission class for callers, staff or not, who may view or change a model."""

    class MayView(BasePermission):
        message = f"This needs the permission queue_app.view_{model}."

        def has_permission(self, request: Request, view: Any) -> bool:
            return any(request.user.has_perm(f"queue_app.{verb}_{model}") for verb in ("view", "change"))

    return MayView


def _message(permissions: tuple[str, ...]) -> str:
    noun = "permission" if len(permissions) == 1 else "permissions"
    return f"This needs staff status and the {noun} {' and '.join(permissions)}."
