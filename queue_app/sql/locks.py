"""Locks of the cluster that lapse: the leadership of the schedulers, and what processes report for a moment."""

from typing import Final

from queue_app.sql.database import fetch_prepared

_MAY_TAKE: Final = "held.token = EXCLUDED.token OR held.until < statement_timestamp()"
# A lock lasts no longer than its next candidate wants it, or it would last too long after the clock has stepped back.
_TAKE: Final = f"""
INSERT INTO queue_app_rows_lock AS held (name, token, until)
VALUES (%s, %s, clock_timestamp() + make_interval(secs => %s))
ON CONFLICT (name) DO UPDATE SET token = CASE WHEN {_MAY_TAKE} THEN EXCLUDED.token ELSE held.token END,
    until = CASE WHEN {_MAY_TAKE} THEN EXCLUDED.until ELSE LEAST(held.until, EXCLUDED.until) END
RETURNING token
"""
_RELEASE: Final = "DELETE FROM queue_app_rows_lock WHERE name = %s AND token = %s RETURNING 1"
_LAPSES: Final = """
SELECT EXTRACT(EPOCH FROM until - clock_timestamp())::float8 FROM queue_app_rows_lock
WHERE name = %s AND until > statement_timestamp()
"""
#: The lock of the scheduler that leads.
LEADER: Final = "scheduler"


def hold(name: str, token: str, seconds: float) -> bool:
    """Take or renew a lock, or release it with 0 seconds; return whether ``token`` holds it."""
    if not seconds:
        fetch_prepared((_RELEASE, [name, token]))
        return False
    return fetch_prepared((_TAKE, [name, token, float(seconds)])) == [(token,)]


def lapses_in(name: str) -> float | None:
    """Return the seconds after which a lock expires unless it is renewed; ``None`` if nothing holds it."""
    found = fetch_prepared((_LAPSES, [name]))
    return found[0][0] if found else None
