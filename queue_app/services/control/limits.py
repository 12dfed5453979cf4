"""Edit limits of task types and concurrency keys. Admin and API refuse the same, by the models.

An edit holds from the next claim on: the index learns of it on commit (``services.queues``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from django.core.exceptions import NON_FIELD_ERRORS, ValidationError
from django.db import IntegrityError

from queue_app.exceptions import InvalidTaskData, LimitNotFound
from queue_app.models import Limit
from queue_app.sql.database import alias, atomic

#: What a person may edit; pauses have services of their own.
PACE: Final = ("max_concurrent", "rate_count", "rate_seconds", "rate_burst", "min_delay_seconds", "throttled_until")
#: Codes of Django's validators -> ours.
_CODES: Final = {"min_value": "out_of_range", "max_value": "out_of_range", "invalid_choice": "unknown_choice"}


class InvalidLimits(InvalidTaskData):
    """Limits that cannot be: ``errors`` names each field at fault."""

    def __init__(self, errors: list[InvalidTaskData]) -> None:
        first = errors[0]
        super().__init__(first.field, first.message, code=first.code)
        self.errors = errors


@contextmanager
def refused() -> Iterator[None]:
    """Turn what the models refuse into ``InvalidLimits``."""
    try:
        yield
    except ValidationError as error:
        raise InvalidLimits(list(_named(error))) from error


def create_limit(scope: str, name: str, changes: Mapping[str, Any]) -> Limit:
    """Store limits of a task type or key; raise ``InvalidLimits``."""
    limit = Limit(scope=scope, name=name, **changes)
    with refused(), atomic():
        limit.full_clean()
        try:
            with atomic():
                limit.save(using=alias(), force_insert=True)
        except IntegrityError:  # somebody else stored the same a moment ago
            limit.full_clean()
            raise
    return limit


def update_limit(limit_id: int, changes: Mapping[str, Any]) -> Limit:
    """Change limits of a task type or key; raise ``LimitNotFound`` and ``InvalidLimits``."""
    with atomic():
        return _change(_limit(limit_id), changes)


def delete_limit(limit_id: int) -> Limit:
    """Lift limits; raise ``LimitNotFound``."""
    with atomic():
        limit = _limit(limit_id)
        found = Limit(id=limit.id, scope=limit.scope, name=limit.name)
        limit.delete()
    return found


def _change(found: Limit, changes: Mapping[str, Any]) -> Limit:
    for field, value in changes.items():
        setattr(found, field, value)
    with refused():
        found.full_clean()
    if changes:
        found.save(update_fields=[*changes, "updated_at"])
    return found


def _limit(limit_id: int) -> Limit:
    limit = Limit.objects.using(alias()).select_for_update().filter(pk=limit_id).first()
    if limit is None:
        raise LimitNotFound(f"There is no limit {limit_id}.")
    return limit


def _named(error: ValidationError) -> Iterator[InvalidTaskData]:
    """Yield each error with its field; of a field at fault, the first one tells enough."""
    for field, problems in error.error_dict.items() if hasattr(error, "error_dict") else [(NON_FIELD_ERRORS, [error])]:
        problem = problems[0]
        name = "name" if field == NON_FIELD_ERRORS else field
        params = problem.params if isinstance(problem.params, Mapping) else {}
        limit = params.get("limit_value")
        yield InvalidTaskData(
            name,
            f"{name}: {' '.join(problem.messages)}",
            code=_CODES.get(problem.code or "", "invalid"),
            limit=limit if isinstance(limit, int) else None,
        )
