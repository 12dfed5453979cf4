"""Read times that PostgreSQL can hold and Python cannot, such as ``infinity``, as the ends of Python's calendar.

The queue never writes them. Without this loader, one such value, set by hand, makes every list with its row fail.
"""

from datetime import UTC, datetime
from functools import cache
from typing import Any, Final

from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created
from psycopg import DataError
from psycopg.pq import Format

from queue_app import conf

TYPE: Final = "timestamptz"


class Bounded:
    """Marks loaders that know the ends of the calendar."""


def install(connection: BaseDatabaseWrapper, **_: Any) -> None:
    """Add the loader to a new connection to the database of the queue."""
    if connection.alias != conf.load()[0].database_alias or connection.vendor != "postgresql":
        return
    adapters = connection.connection.adapters
    base: Any = adapters.get_loader(adapters.types[TYPE].oid, Format.TEXT)
    if not issubclass(base, Bounded):  # a pool gives the same connection again
        adapters.register_loader(TYPE, _bounded(base))


@cache
def _bounded(base: Any) -> Any:
    """Return a loader like Django's, ``base``, which knows the time zone of the connection."""

    class Loader(Bounded, base):  # type: ignore[misc]
        def load(self, data: Any) -> Any:
            try:
                return super().load(data)
            except DataError:
                text = bytes(data)
                is_past = text.startswith(b"-") or text.endswith(b"BC")
                return datetime.min.replace(tzinfo=UTC) if is_past else datetime.max.replace(tzinfo=UTC)

    return Loader


connection_created.connect(install, dispatch_uid=__name__)
