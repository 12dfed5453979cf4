"""Record who changed what by hand, through which interface, and why.

Call ``record`` in the transaction of the change: then no change lacks its record, and no record lacks its change.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from django.utils import timezone

from queue_app import registry
from queue_app.core.masking import MASK, mask
from queue_app.core.payload import storable, storable_text
from queue_app.models import AuditEntry
from queue_app.models.audit_entry import REASON_LENGTH
from queue_app.models.columns import TYPE_LENGTH, USER_LENGTH
from queue_app.sql.database import alias

ADMIN, API, COMMAND, CODE = "admin", "api", "command", "code"
#: Maximum number of ids that are kept of a bulk action.
MAX_IDS: Final = 100
#: Names of values that hold a payload or a part of one.
PAYLOAD: Final = frozenset({"args", "kwargs", "parameters", "payload", "result", "error", "text", "lines", "traceback"})


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
    """Write one entry for an action on one or ``count`` objects (default: ``ids``).

    Sensitive values and payloads are masked at every depth, because readers of the log may not be allowed to see them.
    """
    details = dict(after or {})
    if len(ids) > 1:
        details["ids"] = [str(name) for name in ids[:MAX_IDS]]
    sides = storable(_recordable(mask([dict(before or {}), details], registry.all_sensitive_names())))
    return AuditEntry.objects.using(alias()).create(
        at=timezone.now(),
        by=by[:USER_LENGTH],
        via=via,
        action=action[:50],
        target=target[:50],
        target_id=str(ids[0])[:TYPE_LENGTH] if len(ids) == 1 else "",
        count=max(len(ids), 1) if count is None else count,
        before=sides[0],
        after=sides[1],
        reason=storable_text(reason)[:REASON_LENGTH],
    )


def _recordable(value: Any, name: str = "") -> Any:
    """Return a JSON value without payloads and long lists."""
    if value not in (None, "", [], {}) and (name in PAYLOAD or name.startswith("parameters__")):
        return MASK
    if isinstance(value, Mapping):
        return {key: _recordable(item, key) for key, item in value.items()}
    return [_recordable(item) for item in value[:MAX_IDS]] if isinstance(value, list) else value
