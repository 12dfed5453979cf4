"""Whether there is anything to do: what several jobs would look for, asked in one round trip.

An answer only spares whoever asks the statement that acts, so it must be true whenever that statement would find
something: each question is implied by its conditions, and may ask for less than all of them.
The statements are prepared, and planned for full tables as those of claims are.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import cache
from typing import Any, Final

from queue_app.sql import reap, workers
from queue_app.sql.database import BY_KEYS_ONLY, fetch_all, fetch_together

_PAUSE_OVER = "SELECT FROM {table} WHERE paused AND resume_at <= statement_timestamp()"
#: Whether there is one, as an expression.
ANY_PAUSE_OVER = " OR ".join(
    f"EXISTS ({_PAUSE_OVER.format(table=table)})"
    for table in ("queue_app_queue", "queue_app_limit", "queue_app_runtimesettings")
)

# The earliest of all, not whether there is one: an index that has what waits in the order of queues would do for
# that, and nobody would see it as long as the tables are empty. For the order only one index does without a sort.
_DUE: Final = """
COALESCE((
    SELECT run_after FROM queue_app_task WHERE status = 'scheduled' ORDER BY run_after LIMIT 1
) <= statement_timestamp(), false)
"""
# Who is alive is put into a hash table, while a join would ask for the worker of each task.
_ORPHANS: Final = """
EXISTS (SELECT FROM queue_app_task WHERE status = 'executing'
    AND worker_id NOT IN (SELECT id FROM queue_app_worker WHERE status IN ('active', 'draining')))
"""
_NEIGHBOURS: Final = f"ARRAY(SELECT pid || ' ' || process_identity FROM queue_app_worker WHERE {workers.NEIGHBOURS})"

#: What can be asked, and how. Each has at most one parameter, of the same name.
QUESTIONS: Final[dict[str, str]] = {
    "generation": "COALESCE((SELECT number FROM queue_app_indexgeneration WHERE id = 1), 0)",
    "due": _DUE,
    "silent": f"EXISTS (SELECT FROM queue_app_worker WHERE {workers.SILENT})",
    "neighbours": _NEIGHBOURS,  # the answer: "pid identity" of each
    "orphans": _ORPHANS,
    "overdue": f"EXISTS (SELECT FROM queue_app_task AS t WHERE {reap.OVERDUE})",
    "pauses": ANY_PAUSE_OVER,
    "operations": "EXISTS (SELECT FROM queue_app_operation WHERE state = 'running')",
}

_PRELUDE: Final = f"SELECT {BY_KEYS_ONLY}, set_config('enable_sort', 'off', true)"


def look(asked: Collection[str], params: Mapping[str, Any]) -> dict[str, Any]:
    """Answer questions by name; ``params`` has what those of them need that have a parameter."""
    names = tuple(name for name in QUESTIONS if name in asked)
    values = [params[name] for name in names if "%s" in QUESTIONS[name]]
    (row,) = fetch_together((_PRELUDE, []), (statement(names), values))
    return dict(zip(names, row, strict=True))


@cache
def statement(names: tuple[str, ...]) -> str:
    """Return the statement that asks these questions; it is prepared by its text, so each choice of them has one."""
    return "SELECT " + ", ".join(QUESTIONS[name] for name in names)


def any_due() -> bool:
    """Whether something was paused until now."""
    return bool(fetch_all(f"SELECT {ANY_PAUSE_OVER}")[0][0])
