"""The rows that the migrations create."""

from functools import cache
from importlib import import_module
from typing import Any

from django.apps import apps
from django.db import connection
from django.db.models import QuerySet

from queue_app.services.enqueue import store

#: Schema with a copy of the rows that the migrations create, and the function that puts them back.
_COPIES = "as_migrated"


def erase(rows: QuerySet[Any]) -> None:
    """Delete rows alone, as someone's SQL does: without what belongs to them."""
    rows._raw_delete(using="default")


def reset_rows() -> None:
    """Reset every table to the rows of the migrations, in one round trip."""
    if connection.connection is not None and not connection.is_usable():
        connection.close()
    connection.set_autocommit(True)
    _prepare(connection.settings_dict["NAME"], connection.settings_dict["PORT"])
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {_COPIES}.reset()")
    forget_known_queues()


def forget_known_queues() -> None:
    """Let this process look every queue up again, after a test has emptied the tables."""
    store._known_queues.clear()
    store._undeclared.clear()


@cache
def _prepare(_database: str, _port: str) -> None:
    """Clean the queue's own tables, copy all rows, and create the function that resets all tables.

    PostgreSQL plans the statements of a function once a session. They are one transaction, which checks foreign keys at
    its end, so the order of tables does not matter.
    """
    with connection.cursor() as cursor:
        tables = connection.introspection.django_table_names(only_existing=True)
        ours = [table for table in tables if table.startswith("queue_app_")]
        cursor.execute(";".join(f"DELETE FROM {table}" for table in ours))  # noqa: S608 - names of our tables
        with connection.schema_editor() as editor:
            import_module("queue_app.migrations.0002_defaults").create_rows(apps, editor)
        cursor.execute(f"DROP SCHEMA IF EXISTS {_COPIES} CASCADE; CREATE SCHEMA {_COPIES}")
        cursor.execute("SELECT relname FROM pg_class WHERE relname ~ '^queue_app_rows_[a-z]+$' AND relkind = 'r'")
        tables += [name for (name,) in cursor.fetchall()]  # of the index in PostgreSQL, which have no models
        statements = "\n".join(_put_back(cursor, table) for table in tables)
        cursor.execute(
            f"CREATE FUNCTION {_COPIES}.reset() RETURNS void LANGUAGE plpgsql AS $$ BEGIN\n{statements}\nEND $$"
        )


def _put_back(cursor, table: str) -> str:
    cursor.execute(f"SELECT EXISTS (SELECT FROM {table})")  # noqa: S608 - names of our tables
    if not cursor.fetchone()[0]:
        return f"IF EXISTS (SELECT FROM {table}) THEN DELETE FROM {table}; END IF;"  # noqa: S608 - the same
    copy = f"{_COPIES}.{table}"
    cursor.execute(f"CREATE TABLE {copy} AS TABLE {table}")
    key = connection.introspection.get_primary_key_column(cursor, table)
    return (
        f"DELETE FROM {table} WHERE {key} IN (SELECT {key} FROM (TABLE {table} EXCEPT TABLE {copy}) changed);"  # noqa: S608
        f"INSERT INTO {table} SELECT * FROM {copy} ON CONFLICT DO NOTHING;"
    )
