"""Close a gate for a while: its row holds the time until which no task starts."""

from typing import Final

from queue_app.core.limit_values import Scope
from queue_app.sql.database import execute

_QUEUE: Final = """
UPDATE queue_app_queue SET updated_at = clock_timestamp(),
    throttled_until = GREATEST(throttled_until, clock_timestamp() + make_interval(secs => %s))
WHERE name = %s
"""
# A type or key without limits gets a row that only throttles; the limits of a key's family still apply to it.
_LIMIT: Final = """
INSERT INTO queue_app_limit AS l (scope, name, throttled_until, created_at, updated_at)
VALUES (%s, %s, clock_timestamp() + make_interval(secs => %s), clock_timestamp(), clock_timestamp())
ON CONFLICT (scope, name) DO UPDATE
SET throttled_until = GREATEST(l.throttled_until, EXCLUDED.throttled_until), updated_at = EXCLUDED.updated_at
"""
_FORGET: Final = """
DELETE FROM queue_app_limit WHERE id IN (
    SELECT id FROM queue_app_limit
    WHERE throttled_until < statement_timestamp() - make_interval(secs => %s) AND NOT paused AND max_concurrent IS NULL
        AND rate_count IS NULL AND min_delay_seconds IS NULL
    LIMIT %s FOR UPDATE SKIP LOCKED)
"""


def close(scope: str, name: str, seconds: float) -> None:
    """Close the gate for ``seconds``, or longer if an earlier call closed it for longer."""
    if scope == Scope.QUEUE:
        execute(_QUEUE, [seconds, name])
    else:
        execute(_LIMIT, [scope, name, seconds])


def forget(seconds: float, limit: int) -> int:
    """Delete at most ``limit`` rows that only throttled, until more than ``seconds`` ago; return how many."""
    return execute(_FORGET, [seconds, limit])
