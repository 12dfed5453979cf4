"""Ask in one round trip whether the jobs of the scheduler have work.

If the answer is false, the scheduler does not run the job's own statement. So the answer must be true whenever that
statement would find work: each question has a subset of the statement's conditions and no others.
The questions are prepared, and planned for full tables as claims are.

Questions about a state that every task passes through are timed: they also read the entries of tasks that have left
the state, while an old snapshot keeps these in the index (``core.query_pauses``).
"""

from collections.abc import Collection, Mapping
from functools import cache
from itertools import pairwise
from typing import Any, Final

from queue_app.sql import adaptive, reap, waiting, watchdog, workers
from queue_app.sql.database import BY_KEYS_ONLY, fetch_prepared, fetch_value

_ANY_PAUSE_OVER: Final = " OR ".join(
    f"EXISTS (SELECT FROM {table} WHERE paused AND resume_at <= statement_timestamp())"
    for table in ("queue_app_queue", "queue_app_limit", "queue_app_runtimesettings", "queue_app_schedule")
)

# The order leaves only one index that needs no sort. For a minimum, PostgreSQL could choose the index of waiting tasks
# by queue while the tables are empty, and keep it.
_EARLIEST: Final = ", ".join(
    f"(SELECT run_after FROM queue_app_task WHERE {condition} {{recently}} ORDER BY run_after LIMIT 1)"
    for condition in ("status = 'scheduled'", waiting.TIMED_OUT)
)
_DUE: Final = f"""
COALESCE(EXTRACT(EPOCH FROM LEAST({_EARLIEST})) - EXTRACT(EPOCH FROM statement_timestamp()), 'Infinity')::float8
"""
# PostgreSQL puts the live workers into a hash table; a join would look up the worker of every task.
_ORPHANS: Final = """
EXISTS (SELECT FROM queue_app_task WHERE status = 'executing'
    AND worker_id NOT IN (SELECT id FROM queue_app_worker WHERE status IN ('active', 'draining')))
"""
_NEIGHBOURS: Final = f"ARRAY(SELECT pid || ' ' || process_identity FROM queue_app_worker WHERE {workers.NEIGHBOURS})"

#: {name: expression}. A question has at most one parameter, of the same name.
QUESTIONS: Final[dict[str, str]] = {
    "generation": "COALESCE((SELECT number FROM queue_app_indexgeneration WHERE id = 1), 0)",
    # answers with the seconds until a task is due; infinity: none is scheduled
    "due": _DUE.format(recently=""),
    "recently_due": _DUE.format(recently=f"AND {waiting.RECENTLY}"),
    "heartbeats": workers.HEARTBEATS,
    "neighbours": _NEIGHBOURS,  # answers with "pid identity" of each
    "orphans": _ORPHANS,
    "overdue": f"EXISTS (SELECT FROM queue_app_task AS t WHERE {reap.OVERDUE})",
    "pauses": _ANY_PAUSE_OVER,
    # answers with the seconds until a schedule is due; null: none ticks
    "schedules": "(SELECT EXTRACT(EPOCH FROM min(due_at) - statement_timestamp())::float8 FROM queue_app_schedule)",
    "startable": watchdog.ANY_STARTABLE,
    # The following answer with a time, or with names; the earliest task is compared as in `due`.
    "late": """(SELECT run_after FROM (
        SELECT run_after FROM queue_app_task WHERE status = 'scheduled' ORDER BY run_after LIMIT 1
    ) AS first WHERE run_after < statement_timestamp() - make_interval(secs => %s))""",
    "overrun": f"(SELECT min(t.deadline) FROM queue_app_task AS t WHERE {reap.OVERDUE})",
    "upkeep": """ARRAY(SELECT name FROM queue_app_maintenancejob
        WHERE COALESCE(succeeded_at, '-infinity') < statement_timestamp() - make_interval(secs => %s))""",
    "adaptive": f"({adaptive.ANY_ADAPTIVE})",
    "workflows": "EXISTS (SELECT FROM queue_app_workflow WHERE finished_at IS NULL)",
    "operations": "EXISTS (SELECT FROM queue_app_operation WHERE state = 'running')",
}

TIMED: Final = frozenset({"due", "orphans", "overdue", "startable", "late", "overrun"})
#: PostgreSQL answers the questions of a statement one after the other; this is the time (s) that it has taken so far.
_SO_FAR: Final = "EXTRACT(EPOCH FROM clock_timestamp() - statement_timestamp())::float8"

_PRELUDE: Final = f"SELECT {BY_KEYS_ONLY}, set_config('enable_sort', 'off', true)"


def pending_work(asked: Collection[str], params: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, float]]:
    """Return {name: answer} of the questions, and {name: how long it took (s)} of the timed ones.

    ``params`` holds the parameters by question.
    """
    names = tuple(sorted((name for name in QUESTIONS if name in asked), key=TIMED.__contains__))
    values = [params[name] for name in names if "%s" in QUESTIONS[name]]
    (row,) = fetch_prepared((_PRELUDE, []), (statement(names), values))
    plain = sum(name not in TIMED for name in names)
    answers, so_far = [*row[:plain], *row[plain + 1 :: 2]], row[plain::2]
    took = [after - before for before, after in pairwise(so_far)]
    return dict(zip(names, answers, strict=True)), dict(zip(names[plain:], took, strict=True))


@cache
def statement(names: tuple[str, ...]) -> str:
    """Return the statement for these questions; each combination has its own, as statements are prepared by text.

    The timed questions come last, each between two times.
    """
    timed = [f"{QUESTIONS[name]}, {_SO_FAR}" for name in names if name in TIMED]
    return "SELECT " + ", ".join([*(QUESTIONS[name] for name in names if name not in TIMED), _SO_FAR, *timed])


def any_pause_over() -> bool:
    """Return whether the time of a pause is over."""
    return bool(fetch_value(f"SELECT {_ANY_PAUSE_OVER}"))
