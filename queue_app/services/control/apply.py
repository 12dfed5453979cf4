"""Set limits and thresholds by name, with a reason and entries of the audit log, as a simulation tried them."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from queue_app.core.limit_values import ARRIVAL, FAIR, FIFO, Scope
from queue_app.core.priorities import parse_band
from queue_app.exceptions import InvalidTaskData
from queue_app.models import Limit, PriorityPolicy, Queue, RuntimeSettings
from queue_app.services.control import audit
from queue_app.services.control.limits import PACE, translated_errors
from queue_app.services.control.queues import POLICY_FIELDS, QUEUE_FIELDS
from queue_app.sql.database import alias, atomic

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
        found: Row | None = RuntimeSettings.objects.using(alias()).select_for_update().filter(pk=1).first()
        return found or RuntimeSettings(pk=1)
    if scope == "band":
        band = parse_band(rest)
        found = PriorityPolicy.objects.using(alias()).select_for_update().filter(pk=band).first()
        return found or PriorityPolicy(priority=band)
    if scope == Scope.QUEUE:
        return Queue.objects.using(alias()).select_for_update().filter(pk=rest).first() or Queue(name=rest)
    limits = Limit.objects.using(alias()).select_for_update()
    return limits.filter(scope=scope, name=rest).first() or Limit(scope=scope, name=rest)


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
