"""Who may call what, and read which payloads.

Users read the payloads of their own tasks: arguments, results, errors and logs. Those of others need
``queue_app.view_payload`` and the permission to see the task. A payload that a caller may not read cannot be searched
either: the caller could find it by trying values.
"""

from typing import Any, Final

from rest_framework.exceptions import PermissionDenied
from rest_framework.permissions import BasePermission
from rest_framework.request import Request

from queue_app import conf
from queue_app.encryption import check_search
from queue_app.models import ApiKey, DeadLetter, Task
from queue_app.models.dead_letter import DeadLetterQuerySet, letters_restricted_to
from queue_app.models.querysets import TaskQuerySet, restricted_to
from queue_app.services.read.dead_letters import DeadLetterFilter
from queue_app.services.read.task_filter import TaskFilter

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


def check_scope(request: Request, scope: str) -> None:
    """Raise ``PermissionDenied`` if the caller's key has scopes and ``scope`` is not among them."""
    key = request.auth
    if isinstance(key, ApiKey) and key.scopes and scope not in key.scopes:
        raise PermissionDenied(f"This key lacks the scope {scope}.")


# Payloads.

VIEW_PAYLOAD: Final = "queue_app.view_payload"
#: Filters of tasks or dead letters that search their payloads.
PAYLOAD_FILTERS: Final = ("parameters", "error", "text", "exception_class")


def may_view_payload(user: Any, owner: str | None) -> bool:
    """Return whether ``user`` may read the payloads of ``owner``'s tasks; ``None`` means all owners."""
    return bool(owner == user.get_username() or user.has_perm(VIEW_PAYLOAD))


def check_payload(user: Any, owner: str | None, what: str) -> None:
    """Raise ``PermissionDenied`` if ``what`` needs payloads of ``owner``'s tasks that ``user`` may not read."""
    if not may_view_payload(user, owner):
        raise PermissionDenied(f"{what} of others needs the permission {VIEW_PAYLOAD}.")


def visible_tasks(user: Any, wanted: TaskFilter) -> TaskQuerySet:
    """Return the tasks that ``user`` may see; raise ``PermissionDenied`` if the filter searches hidden payloads."""
    _check_filter(user, wanted, restricted_to(user))
    return Task.objects.visible_to(user)


def visible_letters(user: Any, wanted: DeadLetterFilter) -> DeadLetterQuerySet:
    """Return the dead letters that ``user`` may see; raise ``PermissionDenied`` like ``visible_tasks``."""
    _check_filter(user, wanted, letters_restricted_to(user))
    return DeadLetter.objects.visible_to(user)


def _check_filter(user: Any, wanted: TaskFilter | DeadLetterFilter, name: str | None) -> None:
    asked = [field for field in PAYLOAD_FILTERS if getattr(wanted, field, None)]
    if asked:
        check_search(asked[0], wanted.task_types)
        check_payload(user, wanted.user if name is None else name, f"Searching by {' and '.join(asked)} in tasks")
