"""Check for sessions that lock a table of the queue, beside which everything waits."""

import time
from collections.abc import Iterator
from typing import Final

from queue_app.core.finding import Finding, fail, warn
from queue_app.sql import doctor as rows

#: Age in seconds from which a lock is reported.
REPORTED_SECONDS: Final = 2.0
#: Maximum number of characters of a statement that a finding shows.
SHOWN: Final = 80
HINT: Final = (
    "Wait, or end the session that holds the lock: SELECT pg_terminate_backend({pid}). Let migrations set lock_timeout,"
    " and build indexes with CONCURRENTLY."
)


def check_locks() -> Iterator[Finding]:
    """Report locks of whole tables: a failure if reading waits too, else a warning. Asks only the system's views."""
    found = rows.table_locks(REPORTED_SECONDS)
    if any(lock.seconds is None for lock in found):  # they may have begun just now
        time.sleep(REPORTED_SECONDS)
        before, found = {lock.pid for lock in found}, rows.table_locks(REPORTED_SECONDS)
        found = [lock for lock in found if lock.pid in before]
    for lock in found:
        waits = "nothing can read or write it" if lock.blocks_reads else "nothing can write it"
        lasts = "" if lock.seconds is None else f" for {lock.seconds:.0f} s"
        held = f"{lock.table} is locked{lasts}, so {waits}: {_session(lock)}"
        if not lock.is_granted:
            held = f"{_session(lock)} has waited{lasts} to lock {lock.table}, and {waits} meanwhile"
            held += f"; it waits for pid {', '.join(map(str, lock.blocked_by))}" if lock.blocked_by else ""
        pid = lock.pid if lock.is_granted or not lock.blocked_by else lock.blocked_by[0]
        yield (fail if lock.blocks_reads else warn)("locks", held, HINT.format(pid=pid))


def _session(lock: rows.TableLock) -> str:
    statement = " ".join(lock.statement.split())[:SHOWN]
    return f"pid {lock.pid} ({', '.join(filter(None, (lock.application or 'no name', lock.state, statement)))})"
