"""What requests about limits ask for: each field by its kind in the model, null where it may be empty."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from django.db import models

from queue_app.api.fields import Reader, integer, number, text
from queue_app.core.parsing import timestamp
from queue_app.exceptions import InvalidTaskData
from queue_app.models import Limit, RuntimeSettings
from queue_app.models.audit_entry import REASON_LENGTH
from queue_app.models.limit import Scope
from queue_app.services.control.limits import PACE
from queue_app.services.control.pause import check_resume_at
from queue_app.services.enqueue.validate import check_reason

EVERYTHING: Final = "everything"
LIMIT_READ_ONLY: Final = ("id", "paused", "paused_at", "paused_by", "paused_reason", "resume_at", "updated_at")


@dataclass(frozen=True, slots=True)
class Pause:
    """Why, and until when."""

    reason: str
    resume_at: datetime | None


@dataclass(frozen=True, slots=True)
class PauseOf:
    """What shall be paused or resumed: everything, a task type, or a key."""

    scope: str
    name: str
    pause: Pause


def parse_limit(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the changes of limits; raise every error in them that can be seen without the row."""
    reader = Reader(data)
    reader.refuse_others(PACE, ("scope", "name", *LIMIT_READ_ONLY))
    changes = _changes(reader, data)
    reader.finish()
    return changes


def parse_new_limit(data: Mapping[str, Any]) -> tuple[str, str, dict[str, Any]]:
    """Return scope, name and limits; as ``parse_limit``."""
    reader = Reader(data)
    reader.refuse_others(("scope", "name", *PACE), LIMIT_READ_ONLY)
    scope = reader.required("scope", _one_of(list(Scope)), "")
    name = reader.required("name", text, "")
    changes = _changes(reader, data)
    reader.finish()
    return scope, name, changes


def parse_pause_of(data: Mapping[str, Any], *, resume: bool = False) -> PauseOf:
    """Return what is to be paused, or to resume."""
    reader = Reader(data)
    reader.refuse_others(("scope", "name") if resume else ("scope", "name", "reason", "resume_at"))
    scope = reader.required("scope", _one_of([EVERYTHING, *Scope]), "")
    name = reader.optional("name", text) or ""
    if scope and (scope == EVERYTHING) == bool(name):
        rule = "takes no name" if name else "needs a name"
        reader.note(
            InvalidTaskData("name", f"The scope {scope} {rule}.", code="conflicting_fields" if name else "required")
        )
    pause = _pause(reader)
    reader.finish()
    return PauseOf(scope, name, pause)


def _pause(reader: Reader) -> Pause:
    reason = reader.optional("reason", lambda value, _: check_reason(value, REASON_LENGTH)) or ""
    return Pause(reason, reader.optional("resume_at", resume_time))


def resume_time(value: Any, name: str) -> datetime | None:
    """Accept the time at which a pause ends."""
    return check_resume_at(timestamp(value, name))


def _one_of(choices: Iterable[str]) -> Callable[[Any, str], str]:
    def check(value: Any, name: str) -> str:
        if text(value, name) not in choices:
            raise InvalidTaskData(
                name, f"{value!r:.60} is not known here; use {', '.join(choices)}.", code="unknown_choice"
            )
        return str(value)

    return check


#: The first kind that a field is decides how its value is read.
_KINDS: Final[tuple[tuple[type[models.Field[Any, Any]], Callable[[Any, str], Any]], ...]] = (
    (models.IntegerField, integer),
    (models.FloatField, number),
    (models.DateTimeField, timestamp),
)


def _changes(reader: Reader, data: Mapping[str, Any]) -> dict[str, Any]:
    changes: dict[str, Any] = {}
    for name in PACE:
        if name in data:
            field = Limit._meta.get_field(name)  # noqa: SLF001 - Django's documented way to a model's fields
            check = next(check for kind, check in _KINDS if isinstance(field, kind))
            changes[name] = reader.optional(name, check)  # null lifts
    return changes


# -- what is answered ---------------------------------------------------------------------------------


def limit(found: Limit) -> dict[str, Any]:
    """Return the limits of a task type or key, and whether it is paused."""
    identity = {"id": found.pk, "scope": found.scope, "name": found.name}
    return identity | {field: getattr(found, field) for field in PACE} | _paused(found)


def pause(found: Limit | RuntimeSettings) -> dict[str, Any]:
    """Return what is paused or resumed, and how."""
    if isinstance(found, Limit):
        return {"scope": found.scope, "name": found.name, **_paused(found)}
    return {"scope": EVERYTHING, "name": None, **_paused(found)}


def _paused(found: Limit | RuntimeSettings) -> dict[str, Any]:
    names = ("paused", "paused_at", "paused_by", "paused_reason", "resume_at")
    return {name: getattr(found, name) for name in names}
