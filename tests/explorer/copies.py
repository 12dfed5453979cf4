"""Copies of all rows and keys of a world, from which the next run begins: to make them anew takes ten times as long."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

from django.db import connection

from queue_app.index import redis_index
from tests.support.engine import redis_client

#: The index in PostgreSQL, whose tables have no models.
OF_ROWS = tuple(f"queue_app_rows_{name}" for name in ("state", "lane", "gate", "turn", "call", "lock", "counter"))
#: The columns of a table, but for those that PostgreSQL computes.
_STORED = """
SELECT string_agg(quote_ident(attname), ', ' ORDER BY attnum) FROM pg_attribute
WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped AND attgenerated = ''
"""
FORGET = "for _, key in ipairs(redis.call('KEYS', ARGV[1])) do redis.call('DEL', key) end"
RESTORE = """
for _, key in ipairs(redis.call('KEYS', ARGV[1])) do redis.call('DEL', key) end
for i = 2, #ARGV, 2 do redis.call('RESTORE', ARGV[i], 0, ARGV[i + 1]) end
"""


@dataclass(frozen=True, slots=True)
class Copy:
    """Rows in a schema of their own, keys as the server dumps them, and the names of what is in them."""

    statement: str
    keys: tuple[bytes, ...]  # name, value, name, value, ...
    last_event: int
    names: tuple[Any, ...]

    @classmethod
    def take(cls, number: int, names: tuple[Any, ...]) -> Self:
        """Copy what there is now."""
        tables = connection.introspection.django_table_names(only_existing=True)
        tables = [*(table for table in tables if table.startswith("queue_app_")), "task_event", *OF_ROWS]
        schema = f"explorer_{number}"
        statements = ["SET session_replication_role = replica"]  # no triggers, no order among foreign keys
        with connection.cursor() as cursor:
            cursor.execute(f"DROP SCHEMA IF EXISTS {schema} CASCADE; CREATE SCHEMA {schema}")
            for table in tables:
                cursor.execute(f"CREATE TABLE {schema}.{table} AS TABLE {table}")
                cursor.execute(f"SELECT EXISTS (SELECT FROM {table})")  # noqa: S608 - the same
                statements.append(f"DELETE FROM {table}")  # noqa: S608 - names of tables
                if cursor.fetchone()[0]:
                    cursor.execute(_STORED, [table])
                    columns = cursor.fetchone()[0]
                    overriding = " OVERRIDING SYSTEM VALUE" if table == "task_event" else ""
                    into = f"INSERT INTO {table} ({columns}){overriding}"
                    statements.append(f"{into} SELECT {columns} FROM {schema}.{table}")  # noqa: S608 - the same
            cursor.execute("SELECT COALESCE(max(seq), 0) FROM task_event")
            last_event = cursor.fetchone()[0]
        statements.append("SET session_replication_role = DEFAULT")
        index = redis_index()
        index.flush()
        keys: list[bytes] = []
        for key in redis_client().scan_iter(match=index.keys.everything, count=1000):
            keys += [key, redis_client().dump(key)]
        return cls("; ".join(statements), tuple(keys), last_event, names)

    def put_back(self) -> None:
        """Make rows and keys what they were."""
        with connection.cursor() as cursor:
            cursor.execute(self.statement)
        index = redis_index()
        redis_client().eval(RESTORE, 0, index.keys.everything, *self.keys)
