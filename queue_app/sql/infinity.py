"""Read times that PostgreSQL can hold and Python cannot, such as ``infinity``, as the ends of Python's calendar.

The queue never writes them. Without this loader, one such value, set by hand, makes every list with its row fail.
"""

from datetime import UTC, datetime
from typing import Any, Final

from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created
from psycopg import DataError
from psycopg.pq import Format

from queue_app import conf

TYPE: Final = "timestamptz"


def install(connection: BaseDatabaseWrapper, **_: Any) -> None:
    """Add the loader to a new connection to the database of the queue."""
    if connection.alias != conf.load()[0].database_alias or connection.vendor != "postgresql":
        return
    adapters = connection.connection.adapters
    base: Any = adapters.get_loader(adapters.types[TYPE].oid, Format.TEXT)

    class Bounded(base):  # type: ignore[misc]
        """Django's loader for the time zone of the connection."""

        def load(self, data: Any) -> Any:
            try:
                return super().load(data)
            except DataError:
                text = bytes(data)
                is_past = text.startswith(b"-") or text.endswith(b"BC")
                return datetime.min.replace(tzinfo=UTC) if is_past else datetime.max.replace(tzinfo=UTC)

    adapters.register_loader(TYPE, Bounded)


connection_created.connect(install, dispatch_uid=__name__)
