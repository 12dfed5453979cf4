"""Who learns what tasks were called with, returned and said: the one place where the API decides it.

That is everybody of their own tasks, and of others' whoever has ``queue_app.view_payload``
beside the permission to see the tasks. What may not be read may not be searched for either,
or it could be found out by trying.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from rest_framework.exceptions import PermissionDenied

from queue_app.core.masking import MASK
from queue_app.models import DeadLetter, Task
from queue_app.models.dead_letter import DeadLetterQuerySet, letters_seen_as
from queue_app.models.querysets import TaskQuerySet, seen_as
from queue_app.services.control import audit
from queue_app.services.read.dead_letters import DeadLetterFilter
from queue_app.services.read.task_filter import TaskFilter

VIEW_PAYLOAD: Final = "queue_app.view_payload"
#: What a filter of tasks or dead letters can ask of their payloads.
PAYLOAD_FILTERS: Final = ("parameters", "error", "text")
#: What of a request is a payload, or words of one.
_OF_PAYLOADS: Final = frozenset({*PAYLOAD_FILTERS, "args"})


def may_view_payload(user: Any, owner: str | None) -> bool:
    """Return whether ``user`` may read the payloads of the tasks of ``owner``; ``None`` stands for everybody."""
    return bool(owner == user.get_username() or user.has_perm(VIEW_PAYLOAD))


def check_payload(user: Any, owner: str | None, what: str) -> None:
    """Raise ``PermissionDenied`` where ``what`` needs the payloads of tasks of ``owner``, and they are hidden."""
    if not may_view_payload(user, owner):
        raise PermissionDenied(f"{what} of others needs the permission {VIEW_PAYLOAD}.")


def visible_tasks(user: Any, wanted: TaskFilter) -> TaskQuerySet:
    """Return the tasks that exist for ``user``; raise ``PermissionDenied`` for a filter that tells too much of them."""
    _check_filter(user, wanted, seen_as(user))
    return Task.objects.visible_to(user)


def visible_letters(user: Any, wanted: DeadLetterFilter) -> DeadLetterQuerySet:
    """Return the dead letters that exist for ``user``; as ``visible_tasks``."""
    _check_filter(user, wanted, letters_seen_as(user))
    return DeadLetter.objects.visible_to(user)


def _check_filter(user: Any, wanted: TaskFilter | DeadLetterFilter, name: str | None) -> None:
    asked = [field for field in PAYLOAD_FILTERS if getattr(wanted, field, None)]
    if asked:
        check_payload(user, wanted.user if name is None else name, f"To search by {' and '.join(asked)} in tasks")


def without_payload(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return what was asked, for the audit log, which others read: without the payloads, and words of them, in it."""
    return {
        name: MASK
        if name in _OF_PAYLOADS or name.startswith("parameters__")
        else without_payload(value)
        if isinstance(value, Mapping)
        else value[: audit.MAX_IDS]
        if isinstance(value, list)
        else value
        for name, value in body.items()
    }
