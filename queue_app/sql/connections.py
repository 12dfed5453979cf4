"""What the queue adds to connections to PostgreSQL: keepalives, and a loader for times that Python cannot hold."""

from datetime import UTC, datetime
from functools import cache
from typing import Any, Final

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created
from psycopg import DataError
from psycopg.pq import Format

from queue_app import conf

TYPE: Final = "timestamptz"
#: Options of libpq. After 25 s without any answer a connection breaks. By the defaults of Linux a process would wait
#: for 15 minutes, or for two hours while it expects an answer.
KEEPALIVES: Final[dict[str, Any]] = {
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 25_000,
}


class Bounded:
    """Marks loaders that know the ends of the calendar."""


def add_loader(connection: BaseDatabaseWrapper, **_: Any) -> None:
    """Add the loader to a new connection: it reads ``infinity`` and the like as the ends of Python's calendar.

    The queue never writes them. Without the loader, one such value, set by hand, makes every list with its row fail.
    """
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


def add_keepalives(alias: str) -> None:
    """Let connections break whose other side (a machine, a firewall) is gone, unless the project sets these options."""
    database = connections.settings.get(alias, {})
    if "postg" in database.get("ENGINE", ""):
        database["OPTIONS"] = KEEPALIVES | database.get("OPTIONS", {})


connection_created.connect(add_loader, dispatch_uid=__name__)
