"""Edit queues and policies, and copy limits and thresholds to the index."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, Final

from django.core.exceptions import ValidationError
from django.db import models

from queue_app.core.limit_values import EVERYTHING, Scope, gate_of
from queue_app.core.priorities import Band
from queue_app.exceptions import ChangedMeanwhile, InvalidTaskData
from queue_app.models import Limit, PriorityPolicy, Queue
from queue_app.services.control import audit
from queue_app.services.control.pause import lock_queue
from queue_app.services.notify.index import on_commit
from queue_app.sql import snapshot
from queue_app.sql.database import alias, atomic

#: Editable fields and their types. ``None`` is accepted too if the column is nullable.
QUEUE_FIELDS: Final[dict[str, type[Any]]] = {
    "description": str,
    "order": str,
    "fair_by": str,
    "fair_weights": dict,
    "max_concurrent": int,
    "max_concurrent_per_user": int,
    "max_length": int,
    "max_pending_per_user": int,
    "max_retries": int,
    "timeout_seconds": float,
    "stale_after_seconds": float,
    "expire_eagerly": bool,
    "rate_count": int,
    "rate_seconds": float,
    "rate_burst": int,
    "min_delay_seconds": float,
}
POLICY_FIELDS: Final[dict[str, type[Any]]] = {
    "max_retries": int,
    "timeout_seconds": float,
    "promote_after_seconds": float,
}
_TYPE_NAMES: Final = {
    str: "a string",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    dict: "an object",
}
_MAX_NUMBER: Final = 10**9
_MAX_TEXT: Final = 10_000


def set_queue_limits(name: str, *, max_concurrent: int | None) -> Queue:
    """Set how many tasks of the queue may run at once (``None``: no limit); raise ``UnknownQueue``."""
    with atomic():
        queue = lock_queue(name)
        queue.max_concurrent = max_concurrent
        queue.full_clean(validate_unique=False)
        queue.save(update_fields=["max_concurrent", "updated_at"])
    return queue


def copy_queue_limits(name: str) -> None:
    """Copy the limits of a queue to the index on commit, as they are at that moment."""
    _copy(Scope.QUEUE, name)


def copy_limit(limit: Limit) -> None:
    """Copy the limits of a task type or key to the index on commit, as they are at that moment."""
    _copy(Scope(limit.scope), limit.name)


def _copy(scope: Scope, name: str) -> None:
    on_commit(lambda index: index.set_limits(gate_of(scope, name), snapshot.limits_of(scope, name)), "set_limits")


def copy_global_limits() -> None:
    """Copy the overall limits to the index on commit, as they are at that moment."""
    on_commit(lambda index: index.set_limits(EVERYTHING, snapshot.global_limits()), "set_limits")


def copy_thresholds() -> None:
    """Copy the thresholds of promotion to the index on commit, as they are at that moment."""
    on_commit(lambda index: index.set_thresholds(PriorityPolicy.thresholds(alias())), "set_thresholds")


def version_of(row: models.Model) -> str:
    """Return a short text that differs once any column of the row has changed."""
    values = {field.attname: str(getattr(row, field.attname)) for field in row._meta.concrete_fields}  # noqa: SLF001 - documented by Django
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:20]


def edit_queue(name: str, changes: Mapping[str, Any], *, version: str | None, by: str) -> Queue:
    """Change a queue; with ``version``, only if the queue still has this version.

    Raises ``UnknownQueue``, ``ChangedMeanwhile``, and ``InvalidTaskData`` for invalid values.
    """
    with atomic():
        return _edit(lock_queue(name), QUEUE_FIELDS, changes, version, by)


def edit_policy(band: Band, changes: Mapping[str, Any], *, version: str | None, by: str) -> PriorityPolicy:
    """Change the policy of a band, like ``edit_queue``."""
    with atomic():
        found = PriorityPolicy.objects.select_for_update().filter(pk=band).first()
        policy = PriorityPolicy(priority=band) if found is None else found
        return _edit(policy, POLICY_FIELDS, changes, version, by)


def _edit[T: models.Model](
    row: T, fields: Mapping[str, type[Any]], changes: Mapping[str, Any], version: str | None, by: str
) -> T:
    if version is not None and version != version_of(row):
        raise ChangedMeanwhile("It was changed since you read it; read it again and repeat your change.")
    before = {name: getattr(row, name) for name in changes}
    for name, value in changes.items():
        setattr(row, name, _checked(row, name, value, fields[name]))
    try:
        row.full_clean(validate_unique=False)
    except ValidationError as error:
        field, messages = next(iter(error.message_dict.items()))
        field = "" if field == "__all__" else field
        raise InvalidTaskData(field, " ".join(messages), code="out_of_range") from None
    row.save()
    audit.record("edit", type(row).__name__.lower(), [row.pk], by=by, via=audit.API, before=before, after=changes)
    return row


def _checked(row: models.Model, name: str, value: Any, kind: type[Any]) -> Any:
    field: Any = row._meta.get_field(name)  # noqa: SLF001 - as above
    if value is None:
        if not field.null:
            raise InvalidTaskData(name, f"{name} cannot be null.", code="null_not_allowed")
        return None
    if kind is float and type(value) is int:
        value = float(value)
    if type(value) is not kind:
        raise InvalidTaskData(name, f"{name} must be {_TYPE_NAMES[kind]}.", code="invalid_type")
    if isinstance(value, str) and (len(value) > _MAX_TEXT or "\x00" in value):
        raise InvalidTaskData(
            name, f"{name} takes at most {_MAX_TEXT} characters and no NUL.", code="invalid_characters"
        )
    if isinstance(value, int | float) and not 0 <= value <= _MAX_NUMBER:
        raise InvalidTaskData(
            name, f"{name} must lie between 0 and {_MAX_NUMBER}.", code="out_of_range", limit=_MAX_NUMBER
        )
    return value
