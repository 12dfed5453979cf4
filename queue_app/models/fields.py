"""Lists of names as PostgreSQL arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib.postgres.fields import ArrayField
from django.contrib.postgres.indexes import BrinIndex, GinIndex
from django.core.checks import CheckMessage

if TYPE_CHECKING:
    _ArrayField = ArrayField[Any, Any]  # generic in the stubs only
else:
    _ArrayField = ArrayField


class NamesField(_ArrayField):
    """An array field that does not ask for ``django.contrib.postgres`` in ``INSTALLED_APPS``.

    That app registers lookups for other fields; arrays work without it, and ``"queue_app"``
    alone must be enough to install the queue.
    """

    def check(self, **kwargs: Any) -> list[CheckMessage]:
        """Return Django's findings but for the missing app (postgres.E005)."""
        return [message for message in super().check(**kwargs) if message.id != "postgres.E005"]


class ContainmentIndex(GinIndex):
    """A GIN index for ``@>`` over JSON or names that does not ask for ``django.contrib.postgres`` either."""

    def check(self, model: Any, connection: Any) -> list[CheckMessage]:
        """Return Django's findings but for the missing app (postgres.E005)."""
        return [message for message in super().check(model, connection) if message.id != "postgres.E005"]


class BlockIndex(BrinIndex):
    """A BRIN index, of what some pages hold together, that does not ask for that app."""

    def check(self, model: Any, connection: Any) -> list[CheckMessage]:
        """Return Django's findings but for the missing app (postgres.E005)."""
        return [message for message in super().check(model, connection) if message.id != "postgres.E005"]
