"""Edit limits of task types and concurrency keys. The models validate for the admin and the API alike.

An edit applies from the next claim on: it is copied to the index on commit (see ``queues``).
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from django.core.exceptions import NON_FIELD_ERRORS, ValidationError
from django.db import IntegrityError

from queue_app.exceptions import InvalidTaskData, LimitNotFound
from queue_app.models import Limit
from queue_app.sql.database import alias, atomic

#: Fields that a person may edit; pauses have services of their own.
PACE: Final = (
    "max_concurrent", "adaptive", "min_concurrent", "varies_by", "probe", "rate_count", "rate_seconds", "rate_burst",
    "min_delay_seconds", "throttled_until",
)  # fmt: skip
#: {code of a Django validator: code in our API}.
_CODES: Final = {"min_value": "out_of_range", "max_value": "out_of_range", "invalid_choice": "unknown_choice"}


class InvalidLimits(InvalidTaskData):
    """Invalid limits; ``errors`` has one error for each invalid field."""

    def __init__(self, errors: list[InvalidTaskData]) -> None:
        first = errors[0]
        super().__init__(first.field, first.message, code=first.code)
        self.errors = errors


@contextmanager
def translated_errors() -> Iterator[None]:
    """Raise ``InvalidLimits`` in place of the models' ``ValidationError``."""
    try:
        yield
    except ValidationError as error:
        raise InvalidLimits(list(_named(error))) from error


def create_limit(scope: str, name: str, changes: Mapping[str, Any]) -> Limit:
    """Store limits of a task type or key; raise ``InvalidLimits``."""
    limit = Limit(scope=scope, name=name, **changes)
    with translated_errors(), atomic():
        limit.full_clean()
        try:
            with atomic():
                limit.save(using=alias(), force_insert=True)
        except IntegrityError:  # another process stored the same limit a moment ago
            limit.full_clean()
            raise
    return limit


def update_limit(limit_id: int, changes: Mapping[str, Any]) -> Limit:
    """Change limits of a task type or key; raise ``LimitNotFound`` and ``InvalidLimits``."""
    with atomic():
        limit = _lock(limit_id)
        for field, value in changes.items():
            setattr(limit, field, value)
        with translated_errors():
            limit.full_clean()
        if changes:
            limit.save(update_fields=[*changes, "updated_at"])
        return limit


def delete_limit(limit_id: int) -> Limit:
    """Delete limits and return them; raise ``LimitNotFound``."""
    with atomic():
        limit = _lock(limit_id)
        deleted = Limit(id=limit.id, scope=limit.scope, name=limit.name)
        limit.delete()
    return deleted


def _lock(limit_id: int) -> Limit:
    limit = Limit.objects.using(alias()).select_for_update().filter(pk=limit_id).first()
    if limit is None:
        raise LimitNotFound(f"There is no limit {limit_id}.")
    return limit


def _named(error: ValidationError) -> Iterator[InvalidTaskData]:
    """Yield the first error of each field."""
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
