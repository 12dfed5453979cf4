"""Fields and indexes of the models. Migrations know them as Django's own, so migrations import nothing of this app."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import UUID

from django.contrib.postgres.fields import ArrayField
from django.contrib.postgres.indexes import BrinIndex, GinIndex, PostgresIndex
from django.core.checks import CheckMessage
from django.db import models

from queue_app.core.ids import uuid7

if TYPE_CHECKING:  # generic in the stubs only
    _ArrayField = ArrayField[Any, Any]
    _UUIDField = models.UUIDField[UUID | str, UUID]
else:
    _ArrayField, _UUIDField = ArrayField, models.UUIDField


def _without_app_check(messages: list[CheckMessage]) -> list[CheckMessage]:
    """Remove the error that asks for ``django.contrib.postgres`` in ``INSTALLED_APPS`` (postgres.E005).

    That app registers lookups for other fields; arrays and indexes work without it, and
    ``"queue_app"`` alone must be enough to install the queue.
    """
    return [message for message in messages if message.id != "postgres.E005"]


class IdField(_UUIDField):
    """A primary key whose values sort by the time of their creation (UUIDv7)."""

    def __init__(self, **kwargs: Any) -> None:
        defaults: dict[str, Any] = {"primary_key": True, "default": uuid7, "editable": False}
        super().__init__(**defaults | kwargs)

    def deconstruct(self) -> Any:
        """Describe the column, without the default that Python fills in."""
        name, _, args, kwargs = super().deconstruct()
        kwargs.pop("default", None)
        return name, "django.db.models.UUIDField", args, kwargs


class NamesField(_ArrayField):
    """An array of names."""

    def check(self, **kwargs: Any) -> list[CheckMessage]:
        """Check as Django does, without requiring ``django.contrib.postgres``."""
        return _without_app_check(super().check(**kwargs))

    def deconstruct(self) -> Any:
        """Describe the column."""
        name, _, args, kwargs = super().deconstruct()
        return name, "django.contrib.postgres.fields.ArrayField", args, kwargs


class _PlainIndex(PostgresIndex):
    """An index that needs no ``django.contrib.postgres``; equal to Django's own of the same definition."""

    def check(self, model: Any, connection: Any) -> list[CheckMessage]:
        """Check as Django does, without requiring ``django.contrib.postgres``."""
        return _without_app_check(super().check(model, connection))

    def deconstruct(self) -> Any:
        """Describe the index."""
        base = type(self).__mro__[2]
        return f"django.contrib.postgres.indexes.{base.__name__}", *super().deconstruct()[1:]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PostgresIndex) and self.deconstruct() == other.deconstruct()

    __hash__ = None  # type: ignore[assignment]  # as that of Django's


class ContainmentIndex(_PlainIndex, GinIndex):
    """A GIN index for ``@>`` over JSON or names."""


class WordsIndex(_PlainIndex, GinIndex):
    """A GIN index for words of a text."""


class BlockIndex(_PlainIndex, BrinIndex):
    """A BRIN index, which summarises blocks of pages."""
