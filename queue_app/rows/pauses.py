"""Find pauses whose end has come."""

from __future__ import annotations

from queue_app.rows.database import fetch_all

_DUE = "SELECT FROM {table} WHERE paused AND resume_at <= statement_timestamp()"
#: Whether there is one, as an expression.
ANY_DUE = " OR ".join(
    f"EXISTS ({_DUE.format(table=table)})"
    for table in ("queue_app_queue", "queue_app_limit", "queue_app_runtimesettings")
)


def any_due() -> bool:
    """Whether something was paused until now."""
    return bool(fetch_all(f"SELECT {ANY_DUE}")[0][0])
