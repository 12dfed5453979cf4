"""What the queue adds to connections to PostgreSQL.

Keepalives, no connection for a thread that waits, and an error that says what to do if the tables are missing.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from traceback import walk_stack
from typing import Any, Final

from django.core.exceptions import ImproperlyConfigured
from django.db import DEFAULT_DB_ALIAS, DatabaseError, ProgrammingError, connections
from django.db.backends.signals import connection_created
from psycopg.errors import UndefinedColumn, UndefinedTable

from queue_app import migrations
from queue_app.sql.database import connection
from queue_app.sql.prepared import add_loader

#: Options of libpq. After 25 s without any answer a connection breaks. By the defaults of Linux a process would wait
#: for 15 minutes, or for two hours while it expects an answer.
KEEPALIVES: Final[dict[str, Any]] = {
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 25_000,
}


def add_keepalives(alias: str) -> None:
    """Let connections break whose other side (a machine, a firewall) is gone, unless the project sets these options."""
    database = connections.settings.get(alias, {})
    if "postg" in database.get("ENGINE", ""):
        database["OPTIONS"] = KEEPALIVES | database.get("OPTIONS", {})


def close_idle() -> None:
    """Close this thread's connection, because the thread will wait or end; keep it in a transaction."""
    if not connection().in_atomic_block:
        connection().close()


@contextmanager
def idle() -> Iterator[None]:
    """Hold no connection during a block that waits, unless a transaction is open."""
    close_idle()
    yield


@contextmanager
def missing_tables_explained() -> Iterator[None]:
    """Say what to do if the block fails because the tables do not exist."""
    try:
        yield
    except DatabaseError as error:
        database = connection()
        if database.vendor != "postgresql":
            message = f"The task queue needs PostgreSQL, but DATABASES[{database.alias!r}] is {database.display_name}."
            raise ImproperlyConfigured(message) from None
        if isinstance(error.__cause__, UndefinedTable):
            message = f"The tables of the task queue are missing: run `{migrate_command(database.alias)}`."
            raise ProgrammingError(_in_migration() or message) from None
        if isinstance(error.__cause__, UndefinedColumn) and (message := _in_migration()):
            raise ProgrammingError(message) from None
        raise


def _in_migration() -> str:
    """Return what to do if a migration of the project is under way, which has run before those of the queue."""
    if all(frame.f_globals.get("__name__") != "django.db.migrations.migration" for frame, _ in walk_stack(None)):
        return ""
    last = max(path.stem for path in Path(migrations.__path__[0]).glob("0*.py"))
    return (
        "This migration enqueues a task before the tables of the task queue are up to date. Add"
        f' ("queue_app", "{last}") to its dependencies.'
    )


def remedy_for(error: str, name: str) -> str:
    """Return what to do about the error of a connection to the database with this alias."""
    if "unsupported startup parameter" in error:  # PgBouncer's words
        remedy = "PgBouncer does not pass it on: set it for the role (ALTER ROLE … SET …), and remove it from"
    elif "too many " in error or "connection slots are reserved" in error:
        return (
            "It runs, and its connections are used up: SELECT application_name, state, count(*) FROM pg_stat_activity"
            " GROUP BY 1, 2 says by whom. Close idle ones, start fewer processes, or raise the limit."
        )
    elif "starting up" in error or "shutting down" in error or "recovery mode" in error:
        return "It is about to start or to stop: wait for some seconds."
    elif "FATAL" in error:  # so it runs: a wrong password, or no such user or database
        remedy = "Correct the user, password and name in"
    else:
        remedy = "Start the server, or correct its address in"
    return f"{remedy} DATABASES[{name!r}]."


def migrate_command(name: str) -> str:
    """Return the command that makes the tables in the database with this alias."""
    return "manage.py migrate" if name == DEFAULT_DB_ALIAS else f"manage.py migrate --database {name}"


connection_created.connect(add_loader, dispatch_uid=__name__)
