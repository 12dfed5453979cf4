"""Other sessions of PostgreSQL: one that holds locks beside a test, and those that outlive the tests.

A test database cannot be dropped while a session is open.
"""

import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psutil
from django.db import connection, connections

from tests.support.waiting import until

#: PostgreSQL itself waits this long in DROP DATABASE; a session whose client has left ends in some milliseconds.
PATIENCE = 5.0
_OTHERS = """
SELECT pid, application_name, state, now() - backend_start, left(query, 300) FROM pg_stat_activity
WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()
"""


def assert_no_other_session() -> None:
    """Fail if a session other than this thread's stays open; say which, and which threads and processes live."""
    try:
        until(lambda: not _others(), "no other session", PATIENCE)
    except AssertionError:
        said = ["These sessions outlive the tests:", *_others(), *_threads(), *_processes()]
        raise AssertionError("\n".join(said)) from None
    connections.close_all()


def _others() -> list[str]:
    with connection.cursor() as cursor:
        cursor.execute(_OTHERS)
        return [" | ".join(map(str, row)) for row in cursor.fetchall()]


def _threads() -> list[str]:
    frames = sys._current_frames()
    living = [thread for thread in threading.enumerate() if thread is not threading.current_thread()]
    return [
        f"thread {thread.name}:\n{''.join(traceback.format_stack(frames[thread.ident], 5))}"
        for thread in living
        if thread.ident in frames
    ]


def _processes() -> list[str]:
    return [f"process {child}" for child in psutil.Process().children(recursive=True)]


@contextmanager
def connections_kept(seconds: int | None) -> Iterator[None]:
    """Let new connections stay open between requests for so long, for a block; without a number for ever."""
    settings: Any = connections.settings["default"]
    before = settings["CONN_MAX_AGE"]
    settings["CONN_MAX_AGE"] = seconds
    try:
        yield
    finally:
        settings["CONN_MAX_AGE"] = before


@contextmanager
def transaction_of_another(*statements: str) -> Iterator[int]:
    """Run statements in an open transaction of another session for the block; yield its process number.

    A statement of the test that waits for it fails after 10 s.
    """
    other = connection.copy()
    other.set_autocommit(False)
    try:
        with other.cursor() as cursor, connection.cursor() as own:
            for statement in statements:
                cursor.execute(statement)
            cursor.execute("SELECT pg_backend_pid()")
            own.execute("SET statement_timeout = '10s'")
            yield cursor.fetchone()[0]
    finally:
        other.rollback()
        other.close()
        with connection.cursor() as own:
            own.execute("RESET statement_timeout")
