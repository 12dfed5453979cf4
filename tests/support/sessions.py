"""Sessions of PostgreSQL that outlive the tests: a test database cannot be dropped while one is open."""

import sys
import threading
import time
import traceback

import psutil
from django.db import connection, connections

#: PostgreSQL itself waits this long in DROP DATABASE; a session whose client has left ends in some milliseconds.
PATIENCE = 5.0
_OTHERS = """
SELECT pid, application_name, state, now() - backend_start, left(query, 300) FROM pg_stat_activity
WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()
"""


def assert_no_other_session() -> None:
    """Fail if a session other than this thread's stays open; say which, and which threads and processes live."""
    deadline = time.monotonic() + PATIENCE
    while sessions := _others():
        if time.monotonic() > deadline:
            raise AssertionError(
                "\n".join(["These sessions outlive the tests:", *sessions, *_threads(), *_processes()])
            )
        time.sleep(0.05)
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
