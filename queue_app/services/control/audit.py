"""Record who changed what by hand, through which interface, and why.

Call ``record`` in the transaction of the change: then no change lacks its record, and no record lacks its change.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from django.utils import timezone

from queue_app import conf, registry
from queue_app.core.ids import uuid7
from queue_app.core.payload import storable, storable_text
from queue_app.core.redaction import MASK, mask
from queue_app.exceptions import IdempotencyConflict
from queue_app.models import AuditEntry, IdempotentRequest
from queue_app.models.fields import TYPE_LENGTH, USER_LENGTH
from queue_app.models.operation import REASON_LENGTH
from queue_app.sql.database import alias, bound_transaction, fetch_value

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


# Keys of requests that make or start something: a repetition gets the first answer.
#
# The key, the work and the answer are one transaction. Crash points: before its commit nothing has happened, and the
# repetition does the work; after it the answer is stored. Of requests that arrive together, PostgreSQL lets the first
# insert its key; the others wait for its end.

_TAKE = """
INSERT INTO queue_app_idempotentrequest AS kept (id, "user", key, digest, status, answer, location, created_at)
VALUES (%(id)s, %(user)s, %(key)s, %(digest)s, 0, '', '', statement_timestamp())
ON CONFLICT ("user", key) DO UPDATE SET digest = EXCLUDED.digest, created_at = EXCLUDED.created_at
WHERE kept.created_at < statement_timestamp() - make_interval(secs => %(seconds)s)
RETURNING id
"""


def first_answer(user: str, key: str, digest: str) -> IdempotentRequest | None:
    """Return the answer to the request that used the key, or take the key in the caller's transaction.

    A key is free again after ``RETENTION.IDEMPOTENCY_SECONDS``. Raises ``IdempotencyConflict`` if another request used
    the key.
    """
    seconds = conf.get().retention.idempotency_seconds
    bound_transaction()  # a frozen process would keep repetitions waiting
    values = {"id": uuid7(), "user": user, "key": key, "digest": digest, "seconds": seconds}
    if fetch_value(_TAKE, values) is not None:
        return None
    found = IdempotentRequest.objects.using(alias()).filter(user=user, key=key).first()
    if found is None:  # it was purged since
        raise IdempotencyConflict("The idempotency key is being used by another request; try again.")
    if found.digest != digest:
        raise IdempotencyConflict(f"The idempotency key {key!r} was used for another request or with another body.")
    return found


def keep_answer(user: str, key: str, status: int, answer: str, location: str) -> None:
    """Store the answer to the request that took the key in this transaction."""
    taken = IdempotentRequest.objects.using(alias()).filter(user=user, key=key)
    taken.update(status=status, answer=answer, location=location)
