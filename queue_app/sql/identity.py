"""What tells this database from others, also from a copy of it; an index is bound to one database."""

from typing import Any, Final
from weakref import WeakKeyDictionary

from django.db import DatabaseError

from queue_app.sql.database import atomic, connection, fetch_value

#: A standby and its primary have the same identity, so a failover keeps the index. A dump that was restored lies in
#: another cluster or under another name, so a copy has an identity of its own.
_CLUSTER: Final = "SELECT system_identifier FROM pg_control_system()"
_ROW: Final = "SELECT database FROM queue_app_indexgeneration WHERE id = 1"
_PLACE: Final = "SELECT current_database() || '/' || current_schema()"


def database_identity() -> str:
    """Return "cluster/database/schema"; the first is the cluster's system identifier.

    Where a service hides that number, a random one takes its place. It came with the migrations; a copy has the same.
    """
    database = connection()
    database.ensure_connection()
    known = _known.get(database.connection)
    if known is None:
        known = _known[database.connection] = f"{_cluster()}/{fetch_value(_PLACE)}"
    return known


#: By the connection: the next one may lead to another server.
_known: WeakKeyDictionary[Any, str] = WeakKeyDictionary()


def _cluster() -> str:
    try:
        with atomic():
            return str(fetch_value(_CLUSTER))
    except DatabaseError:
        return str(fetch_value(_ROW))
