"""Fields and indexes of the models. Migrations know them as Django's own, so migrations import nothing of this app."""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from django.contrib.postgres.fields import ArrayField
from django.contrib.postgres.indexes import BrinIndex, GinIndex, PostgresIndex
from django.core.checks import CheckMessage
from django.db import models

from queue_app import encryption
from queue_app.core.ids import uuid7
from queue_app.core.limits import ALGORITHM, FORMER_ALGORITHMS
from queue_app.core.priorities import Band
from queue_app.core.states import Status
from queue_app.exceptions import EncryptionUnavailable, Undecryptable

# Lengths, bounds and choices of columns that several tables share.


def choices_of(values: Iterable[str]) -> list[tuple[str, str]]:
    """Return the choices of a column for these values, with words for people."""
    return [(str(value), str(value).replace("_", " ")) for value in values]


STATUS_CHOICES: Final = choices_of(Status)
PRIORITY_CHOICES: Final = [(band.value, band.label) for band in Band]
NAME_LENGTH: Final = 100
TYPE_LENGTH: Final = 255
USER_LENGTH: Final = 150  # length of Django's usernames
KEY_LENGTH: Final = 64
CONCURRENCY_KEY_LENGTH: Final = 128
MAX_WEIGHT: Final = 1000

if TYPE_CHECKING:  # generic in the stubs only
    _ArrayField = ArrayField[Any, Any]
    JSONField = models.JSONField[Any, Any]
    _CharField = models.CharField[str, str]
    _UUIDField = models.UUIDField[UUID | str, UUID]
else:
    _ArrayField, _CharField, JSONField, _UUIDField = ArrayField, models.CharField, models.JSONField, models.UUIDField


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


class AlgorithmField(_CharField):
    """The algorithm of an adaptive limit; names of former algorithms, stored or given, mean the present one."""

    def deconstruct(self) -> Any:
        """Describe the column."""
        name, _, args, kwargs = super().deconstruct()
        return name, "django.db.models.CharField", args, kwargs

    def to_python(self, value: Any) -> Any:
        """Return the present name."""
        return ALGORITHM if value in FORMER_ALGORITHMS else super().to_python(value)

    def from_db_value(self, value: Any, expression: Any, connection: Any) -> Any:
        """Return the present name."""
        return self.to_python(value)


class SealedJSONField(JSONField):
    """JSON that is encrypted in the table while the project has a key. Nothing can be found by it."""

    def get_db_prep_save(self, value: Any, connection: Any) -> Any:
        """Encrypt the value."""
        if value is not None and encryption.is_on():
            value = json.loads(encryption.seal(json.dumps(value, cls=self.encoder), encryption.SHARED))
        return super().get_db_prep_save(value, connection)

    def from_db_value(self, value: Any, expression: Any, connection: Any) -> Any:
        """Decrypt the value; one whose key is missing stays as it is."""
        found = super().from_db_value(value, expression, connection)
        with suppress(Undecryptable, EncryptionUnavailable):
            return encryption.opened_if(found, encryption.SHARED)
        return found

    def deconstruct(self) -> Any:
        name, _, args, kwargs = super().deconstruct()
        return name, "django.db.models.JSONField", args, kwargs


class NamesField(_ArrayField):
    """An array of names."""

    def check(self, **kwargs: Any) -> list[CheckMessage]:
        """Check as Django does, without requiring ``django.contrib.postgres``."""
        return _without_app_check(super().check(**kwargs))

    def deconstruct(self) -> Any:
        name, _, args, kwargs = super().deconstruct()
        return name, "django.contrib.postgres.fields.ArrayField", args, kwargs


class _PlainIndex(PostgresIndex):
    """An index that needs no ``django.contrib.postgres``; equal to Django's own of the same definition."""

    def check(self, model: Any, connection: Any) -> list[CheckMessage]:
        """Check as Django does, without requiring ``django.contrib.postgres``."""
        return _without_app_check(super().check(model, connection))

    def deconstruct(self) -> Any:
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
