"""Ready-made probes for adaptive limits: each returns a load, 1 for a full one.

A probe runs in the scheduler at every step, so it must answer within milliseconds.
"""

import os

from queue_app.sql.database import fetch_value


def host_cpu() -> float:
    """Return the load average of the last minute for each core of the scheduler's host."""
    return os.getloadavg()[0] / (os.cpu_count() or 1)


def postgresql_active() -> float:
    """Return the share of PostgreSQL's connections that run a statement now."""
    active = fetch_value(
        "SELECT count(*) FILTER (WHERE state = 'active')::float8 / current_setting('max_connections')::float8"
        " FROM pg_stat_activity WHERE backend_type = 'client backend'"
    )
    return float(active)
