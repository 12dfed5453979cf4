"""The rows as the migrations leave them."""

from functools import cache
from importlib import import_module

from django.apps import apps
from django.db import connection

from queue_app.services.enqueue import forget_known_queues

#: Holds a copy of what the migrations write: taking it from there is one statement.
_COPIES = "as_migrated"


def reset_rows() -> None:
    """Empty the queue's tables and put the rows of the migrations back, all in one round trip."""
    statement = _statement(connection.settings_dict["NAME"])
    with connection.cursor() as cursor:
        cursor.execute(statement)
    forget_known_queues()


@cache
def _statement(_database: str) -> str:
    tables = [model._meta.db_table for model in apps.get_app_config("queue_app").get_models()]
    # One implicit transaction, in which foreign keys are looked at only at the end: the order is of no matter.
    empty = ";".join(f"DELETE FROM {table}" for table in tables)  # noqa: S608 - names of our tables
    with connection.cursor() as cursor:
        cursor.execute(empty)
        with connection.schema_editor() as editor:
            import_module("queue_app.migrations.0002_defaults").create_rows(apps, editor)
        cursor.execute(f"DROP SCHEMA IF EXISTS {_COPIES} CASCADE; CREATE SCHEMA {_COPIES}")
        filled = []
        for table in tables:
            cursor.execute(f"SELECT count(*) FROM {table}")  # noqa: S608 - names of our tables
            if cursor.fetchone()[0]:
                cursor.execute(f"CREATE TABLE {_COPIES}.{table} AS TABLE {table}")
                filled.append(f"INSERT INTO {table} SELECT * FROM {_COPIES}.{table}")  # noqa: S608 - the same
    return ";".join([empty, *filled])
