"""A canary for plans: what the queue asks a PostgreSQL with ten rows and with a million, and what its planner does.

Debian's server writes each plan into its log (auto_explain). That of the wheel lacks the module, so it is asked for the
plans of the prepared statements that the log of the other names.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg

from queue_app.sql.database import BY_KEYS_ONLY

#: A table with more rows is large.
LARGE = 10_000
MILLION = """
INSERT INTO queue_app_task (id, task_type, queue, status, priority, capabilities, "user", attempt, failures, created_at,
    queued_at, run_after, worker_id, started_at, finished_at)
SELECT (lpad(to_hex((EXTRACT(EPOCH FROM at) * 1000)::bigint), 12, '0') || '7' || lpad(to_hex(n % 4096), 3, '0') || '8'
        || lpad(to_hex(n), 15, '0'))::uuid,
    'shop.tasks.old' || n % 20, 'queue-' || n % 5, status, n % 4, '{}', 'user-' || n % 1000,
    CASE WHEN ended THEN 1 ELSE 0 END, 0, at, CASE WHEN status <> 'scheduled' THEN at END,
    CASE WHEN status = 'scheduled' THEN now() + interval '1 day' END,
    CASE WHEN ended THEN gen_random_uuid() END, CASE WHEN ended THEN at END, CASE WHEN ended THEN at END
FROM (
    SELECT *, status IN ('completed', 'failed') AS ended FROM (
        SELECT n, now() - (1000000 - n) * interval '0.01 seconds' AS at, CASE WHEN n % 10 < 4 THEN 'queued'
            WHEN n % 10 = 4 THEN 'scheduled' WHEN n % 100 = 5 THEN 'failed' ELSE 'completed' END AS status
        FROM generate_series(1, 1000000) AS n
    ) AS made
) AS made;
INSERT INTO queue_app_taskpayload (task_id, args, parameters) SELECT id, '[1]', '{}' FROM queue_app_task
    ON CONFLICT DO NOTHING;
"""
FILLS = tuple(" ".join(part.split())[:200] for part in MILLION.split(";"))[:2]
_LOGGED = re.compile(r"LOG:  duration: [\d.]+ ms  plan:\n((?:\t.*\n)+)")


def fill(address: str) -> None:
    """Add a million tasks: half have ended, and the rest waits."""
    with psycopg.connect(address, autocommit=True) as connection:
        connection.execute(MILLION)
        connection.execute("VACUUM ANALYZE")


def logged(log: Path) -> Iterator[dict[str, Any]]:
    """Yield the plans that the log of a server holds."""
    for found in _LOGGED.finditer(log.read_text(errors="replace")):
        yield json.loads(found[1].replace("\n\t", "\n"), strict=False)


def _nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for child in plan.get("Plans", ()):
        yield from _nodes(child)


def problems(plans: Iterator[dict[str, Any]], large: set[str]) -> set[str]:
    """Return what is wrong with plans: PostgreSQL compiles them, or they read the whole of a large table."""
    found = set()
    for plan in plans:
        text = " ".join(plan["Query Text"].split())[:200]
        if "queue_app" not in text or text.startswith((*FILLS, "SELECT bool_and")):
            continue  # Django's own, and those of this canary
        if "JIT" in plan:
            found.add(f"compiled for a cost of {plan['Plan']['Total Cost']:.3g}: {text}")
        whole = {node.get("Relation Name") for node in _nodes(plan["Plan"]) if node["Node Type"] == "Seq Scan"} & large
        found |= {f"reads all of {table}: {text}" for table in whole}
    return found


def large_tables(address: str) -> set[str]:
    """Return the tables that have many rows."""
    with psycopg.connect(address) as connection:
        found = connection.execute("SELECT relname FROM pg_class WHERE relkind = 'r' AND reltuples > %s", [LARGE])
        return {name for (name,) in found}


def prepared(plans: Iterator[dict[str, Any]]) -> set[str]:
    """Return the texts of the prepared statements among the plans."""
    return {
        text for plan in plans
        if "$1" in (text := plan["Query Text"]) and "queue_app" in text and ";" not in text
    }  # fmt: skip


def explained(address: str, statements: set[str]) -> Iterator[dict[str, Any]]:
    """Yield the plans that a server makes for prepared statements of the hot path."""
    with psycopg.connect(address) as connection:
        for text in sorted(statements):
            with connection.transaction(force_rollback=True):
                connection.execute(f"SELECT {BY_KEYS_ONLY}")
                cursor = psycopg.RawCursor(connection)
                ((found,),) = cursor.execute(f"EXPLAIN (GENERIC_PLAN, FORMAT JSON) {text}").fetchall()
                yield {"Query Text": text} | found[0]
