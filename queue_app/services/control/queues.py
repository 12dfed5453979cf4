"""Edit queues and policies, set limits and thresholds by name, and copy them to the index."""

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from django.core.exceptions import ValidationError
from django.db import models

from queue_app.core.limits import ARRIVAL, EVERYTHING, FAIR, FIFO, Scope, gate_of
from queue_app.core.priorities import Band, parse_band
from queue_app.core.sentence import sentence
from queue_app.exceptions import ChangedMeanwhile, InvalidTaskData
from queue_app.models import Limit, PriorityPolicy, Queue, RuntimeSettings
from queue_app.services.control import audit
from queue_app.services.control.limits import PACE, translated_errors
from queue_app.services.control.pause import lock_queue
from queue_app.services.notify.index import on_commit
from queue_app.sql import snapshot
from queue_app.sql.database import alias, atomic

#: Editable fields.
QUEUE_FIELDS: Final = (
    "description", "order", "fair_by", "fair_weights", "max_concurrent", "max_concurrent_per_user", "max_length",
    "max_pending_per_user", "max_retries", "timeout_seconds", "stale_after_seconds", "expire_eagerly", "rate_count",
    "rate_seconds", "rate_burst", "min_delay_seconds", "adaptive", "min_concurrent", "varies_by", "probe",
)  # fmt: skip
POLICY_FIELDS: Final = ("max_retries", "timeout_seconds", "promote_after_seconds")
#: Fields of the runtime settings that a person may edit.
OVERALL_FIELDS: Final = (
    "max_concurrent", "adaptive", "min_concurrent", "varies_by", "probe", "max_length", "max_pending_per_user",
)  # fmt: skip

type Row = Queue | Limit | RuntimeSettings | PriorityPolicy

_EDITABLE: Final[dict[type[Row], Sequence[str]]] = {
    Queue: QUEUE_FIELDS,
    Limit: PACE,
    RuntimeSettings: OVERALL_FIELDS,
    PriorityPolicy: (*POLICY_FIELDS, "target_seconds"),
}


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
    fields = [field.attname for field in row._meta.concrete_fields]  # noqa: SLF001 - documented by Django
    values = {name: str(getattr(row, name)) for name in fields if name != "current_concurrent"}  # no person changed it
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
        return _edit(_locked_or_new(PriorityPolicy, priority=band), POLICY_FIELDS, changes, version, by)


def _edit[T: models.Model](
    row: T, fields: Collection[str], changes: Mapping[str, Any], version: str | None, by: str
) -> T:
    if version is not None and version != version_of(row):
        raise ChangedMeanwhile(sentence("It was changed since you read it; read it again and repeat your change."))
    before = {name: getattr(row, name) for name in changes}
    for name, value in changes.items():
        if name not in fields:
            raise KeyError(name)
        setattr(row, name, value)
    try:
        row.full_clean(validate_unique=False)
    except ValidationError as error:
        field, messages = next(iter(error.message_dict.items()))
        field = "" if field == "__all__" else field
        raise InvalidTaskData(field, " ".join(messages)) from None
    row.save()
    audit.record("edit", type(row).__name__.lower(), [row.pk], by=by, via=audit.API, before=before, after=changes)
    return row


def rows_of(changes: Mapping[str, Mapping[str, Any]]) -> list[tuple[Row, dict[str, Any]]]:
    """Return the rows that the changes are about, locked or new, and what to set; raise ``InvalidTaskData``."""
    found: list[tuple[Row, dict[str, Any]]] = []
    for name, values in sorted(changes.items()):
        row, fields = _row(name), dict(values)
        fields |= _order(fields)
        if "shares" in fields:
            fields["fair_weights"] = fields.pop("shares")
        known = _EDITABLE[type(row)]
        if unknown := sorted(set(fields) - set(known)):
            hint = "; pause it by its own button" if unknown[0] == "paused" else f". It has {', '.join(known)}"
            raise InvalidTaskData(unknown[0], f"{name} has no {unknown[0]} to set{hint}.")
        found.append((row, fields))
    return found


def _order(fields: dict[str, Any]) -> dict[str, Any]:
    """Take the order of a queue out of the fields, as a simulation names it; return it as the row does."""
    found = {"order": FIFO} if {"by_arrival", "fair_by"} & fields.keys() else {}
    if fields.pop("by_arrival", False):
        found["order"] = ARRIVAL
    if sharer := fields.pop("fair_by", None):
        found |= {"order": FAIR, "fair_by": sharer}
    return found


def _row(name: str) -> Row:
    scope, _, rest = name.partition(":")
    if not (name == "everything" or (rest and scope in {"band", *Scope})):
        text = f"{name!r:.80} is not everything, queue:NAME, type:NAME, key:NAME or band:NAME."
        raise InvalidTaskData("name", text)
    if name == "everything":
        return _locked_or_new(RuntimeSettings, pk=1)
    if scope == "band":
        return _locked_or_new(PriorityPolicy, priority=parse_band(rest))
    if scope == Scope.QUEUE:
        return _locked_or_new(Queue, name=rest)
    return _locked_or_new(Limit, scope=scope, name=rest)


def _locked_or_new[T: models.Model](model: type[T], **key: Any) -> T:
    """Return the row with the key, locked until the end of the transaction, or a new one that is not yet stored."""
    rows = model._default_manager.using(alias())  # noqa: SLF001 - documented by Django
    return rows.select_for_update().filter(**key).first() or model(**key)


def apply(changes: Mapping[str, Mapping[str, Any]], *, by: str, via: str, reason: str) -> list[Row]:
    """Write the changes in one transaction, each with an entry of the audit log; raise ``InvalidTaskData``."""
    with atomic():
        found = rows_of(changes)
        for row, fields in found:
            before = {name: getattr(row, name) for name in fields}
            for name, value in fields.items():
                column = row._meta.get_field(name)  # noqa: SLF001 - documented by Django
                setattr(row, name, "" if value is None and not column.null else value)
            with translated_errors():
                row.full_clean(validate_unique=False)
            row.save(using=alias())
            kind = str(row._meta.model_name)  # noqa: SLF001 - documented by Django
            before = {name: str(value) if isinstance(value, datetime) else value for name, value in before.items()}
            audit.record(f"{kind}.edit", kind, [row.pk], by=by, via=via, before=before, after=fields, reason=reason)
    return [row for row, _ in found]
