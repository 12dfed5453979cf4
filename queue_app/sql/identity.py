"""What tells this database from others, also from a copy of it; an index is bound to one database."""

from typing import Any, Final
from weakref import WeakKeyDictionary

from django.db import DatabaseError

from queue_app.sql.database import atomic, connection, fetch_value

#: A standby and its primary have the same identity, so a failover keeps the index. A dump that was restored lies in
#: another cluster or under another name, so a copy has an identity of its own.
_CLUSTER: Final = "SELECT system_identifier FROM pg_control_system()"
_ROW: Final = "SELECT database FROM queue_app_indexgeneration WHERE id = 1"
#: The schema is that of the tables: a project with a schema for each tenant puts another one first in its search path.
_PLACE: Final = """
SELECT current_database() || '/' || COALESCE((
    SELECT nspname FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace
    WHERE pg_class.oid = to_regclass('queue_app_indexgeneration')
), current_schema())
"""


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
