"""Record who changed what by hand, through which interface, and why.

Call ``record`` in the transaction of the change: then no change lacks its record, and no record lacks its change.
"""

from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from typing import Any, Final

from django.utils import timezone

from queue_app import registry
from queue_app.core.masking import mask
from queue_app.models import AuditEntry
from queue_app.models.audit_entry import REASON_LENGTH
from queue_app.models.columns import TYPE_LENGTH, USER_LENGTH
from queue_app.sql.database import alias

ADMIN, API, COMMAND = "admin", "api", "command"
_recorded: Final[ContextVar[bool]] = ContextVar("taskqueue_recorded", default=False)
#: Maximum number of ids that are kept of a bulk action.
MAX_IDS: Final = 100


def begin() -> None:
    """Reset ``has_recorded``; the API does so at the start of a request, to record unrecorded changes at its end."""
    _recorded.set(False)


def has_recorded() -> bool:
    """Return whether this thread or task has recorded something since ``begin``."""
    return _recorded.get()


def record(  # noqa: PLR0913 - by name
    action: str,
    target: str,
    ids: Sequence[object] = (),
    *,
    by: str,
    via: str,
    before: Mapping[str, Any] | None = None,
    after: Mapping[str, Any] | None = None,
    reason: str = "",
    count: int | None = None,
) -> AuditEntry:
    """Write one entry for an action on one or ``count`` objects (default: ``ids``); sensitive values are masked."""
    _recorded.set(True)
    details = dict(after or {})
    if len(ids) > 1:
        details["ids"] = [str(name) for name in ids[:MAX_IDS]]
    sensitive = registry.all_sensitive_names()
    return AuditEntry.objects.using(alias()).create(
        at=timezone.now(),
        by=by[:USER_LENGTH],
        via=via,
        action=action[:50],
        target=target[:50],
        target_id=str(ids[0])[:TYPE_LENGTH] if len(ids) == 1 else "",
        count=max(len(ids), 1) if count is None else count,
        before=mask(dict(before or {}), sensitive),
        after=mask(details, sensitive),
        reason=reason[:REASON_LENGTH],
    )
