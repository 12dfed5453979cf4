"""The rules for who may read the payloads of tasks: arguments, results, errors and logs.

Users read the payloads of their own tasks. Those of others need ``queue_app.view_payload`` and the permission to see
the task. A payload that a caller may not read cannot be searched either: the caller could find it by trying values.
"""

from typing import Any, Final

from rest_framework.exceptions import PermissionDenied

from queue_app.encryption import check_search
from queue_app.models import DeadLetter, Task
from queue_app.models.dead_letter import DeadLetterQuerySet, letters_restricted_to
from queue_app.models.querysets import TaskQuerySet, restricted_to
from queue_app.services.read.dead_letters import DeadLetterFilter
from queue_app.services.read.task_filter import TaskFilter

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
