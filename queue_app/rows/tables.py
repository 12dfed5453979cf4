"""What the statements of this room share."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from django.db import Error

from queue_app.exceptions import IndexUnavailable, in_one_line
from queue_app.sql.database import fetch_prepared
from queue_app.sql.prepared import Row, Statement

#: The hash of a task's address, by which its lane is found. The index taskqueue_lane begins with it.
HASH: Final = (
    """hashtextextended(queue || chr(31) || task_type || chr(31) || "user" || chr(31) || concurrency_key"""
    """ || chr(31) || weight::text, hash_array_extended(capabilities, 0))"""
)
#: The columns of an address.
ADDRESS: Final = 'queue, task_type, capabilities, "user", concurrency_key, weight'
#: Whether claims read the lanes.
IS_IN_FORCE: Final = "EXISTS (SELECT FROM queue_app_indexgeneration WHERE id = 1 AND rows_number = number)"


@contextmanager
def translated(operation: str) -> Iterator[None]:
    """Turn database errors into ``IndexUnavailable``."""
    try:
        yield
    except Error as error:
        raise IndexUnavailable(f"PostgreSQL failed ({operation}): {in_one_line(error)}") from error


def ask(operation: str, *statements: Statement) -> list[Row]:
    """Run statements that return rows in one round trip; return those of the last. Raises ``IndexUnavailable``."""
    with translated(operation):
        return fetch_prepared(*statements)
