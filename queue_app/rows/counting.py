"""Counters of the cluster."""

import os
import threading
import time
from collections import Counter
from collections.abc import Iterable
from itertools import batched
from typing import Final

from queue_app import conf
from queue_app.core.events import COUNTED, Run
from queue_app.index.notifier import counter_of
from queue_app.rows.tables import ask
from queue_app.sql.prepared import Statement

#: Processes share the rows of a counter if their numbers have the same remainder.
SHARDS: Final = 16
#: Counts that no notification of a task takes along are written this often.
WRITE_SECONDS: Final = 1.0

_ADD: Final = """
INSERT INTO queue_app_rows_counter AS counter (name, shard, count)
SELECT name, %s, count FROM unnest(%s::text[], %s::bigint[]) AS v (name, count) ORDER BY name
ON CONFLICT (name, shard) DO UPDATE SET count = counter.count + EXCLUDED.count
RETURNING 1
"""
_CALLS: Final = """
INSERT INTO queue_app_rows_counter AS counter (name, shard, count, expires)
VALUES (%s, 0, %s, clock_timestamp() + make_interval(secs => %s))
ON CONFLICT (name, shard) DO UPDATE SET expires = EXCLUDED.expires,
    count = EXCLUDED.count + CASE WHEN counter.expires > clock_timestamp() THEN counter.count ELSE 0 END
RETURNING count
"""


def count_calls(name: str, calls: int, seconds: int) -> int:
    """Add to a counter that expires after ``seconds``; return it."""
    return int(ask("count", (_CALLS, [f"calls:{name}", calls, float(seconds)]))[0][0])


def totals() -> dict[str, int]:
    """Return the counters."""
    sql = "SELECT name, sum(count)::bigint FROM queue_app_rows_counter WHERE expires IS NULL GROUP BY name"
    return dict(ask("stats", (sql, [])))


def restart() -> None:
    """Delete the counters of the cluster."""
    ask("count", ("DELETE FROM queue_app_rows_counter WHERE expires IS NULL RETURNING 1", []))


def forget_expired() -> None:
    """Delete counters of calls, and locks, whose time has passed."""
    ask("count", ("DELETE FROM queue_app_rows_counter WHERE expires < clock_timestamp() RETURNING 1", []))
    ask("lock", ("DELETE FROM queue_app_rows_lock WHERE until < clock_timestamp() - interval '1 hour' RETURNING 1", []))


class Counts:
    """What this process has counted and not written yet."""

    def __init__(self) -> None:
        self.forget()
        os.register_at_fork(after_in_child=self.forget)

    def forget(self) -> None:
        """Start afresh: a forked child must not write what its parent counted."""
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._written_at = 0.0

    def add(self, runs: Iterable[Run]) -> None:
        """Count events, and what ``core.events.counted`` holds."""
        if not conf.get().metrics.enabled:
            return
        with self._lock:
            for occasion, task_ids, _ in runs:
                if occasion.name == COUNTED:
                    for name, count in batched(occasion.details, 2):
                        self._counts[name] += int(count)
                else:
                    self._counts[counter_of(occasion)] += max(1, len(task_ids))

    @property
    def is_due(self) -> bool:
        """Whether something has waited to be written."""
        return bool(self._counts) and time.monotonic() - self._written_at > WRITE_SECONDS

    def take(self) -> list[Statement]:
        """Return the statement that writes the counts, if there are any."""
        with self._lock:
            counts, self._counts, self._written_at = self._counts, Counter(), time.monotonic()
        return [(_ADD, [os.getpid() % SHARDS, list(counts), list(counts.values())])] if counts else []

    def write(self) -> None:
        """Write the counts."""
        if statements := self.take():
            ask("count", *statements)
