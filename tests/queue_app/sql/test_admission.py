"""The count of tasks under a limit, and when it is skipped."""

import pytest

from queue_app.sql import admission
from queue_app.sql.database import execute, fetch_all, fetch_value

ROWS = 5000


@pytest.fixture
def waiting(db) -> None:
    """Many waiting tasks of one user, with the shortest names."""
    execute(
        'INSERT INTO queue_app_task (id, task_type, queue, status, priority, capabilities, "user", attempt, failures,'
        " created_at, queued_at, run_after) SELECT gen_random_uuid(), 't', 'q',"
        " CASE WHEN mod(n, 2) = 0 THEN 'queued' ELSE 'scheduled' END, 2, '{}', 'u', 0, 0, now(),"
        " CASE WHEN mod(n, 2) = 0 THEN now() END, now() FROM generate_series(1, %s) AS n",
        [ROWS],
    )


@pytest.mark.parametrize(("index", "entry"), [admission.LENGTHS, admission.PENDING])
def test_the_size_of_an_index_bounds_the_number_of_its_entries(waiting, index, entry):
    execute(f"ALTER INDEX {index} SET (fillfactor = 100)")
    execute(f"REINDEX INDEX {index}")
    assert fetch_value("SELECT pg_relation_size(%s::regclass)", [index]) / entry >= ROWS


def reads(limit: int) -> list[str]:
    """Return how the tasks were read for the question whether there is room under this limit."""
    condition = ("q", "u", "u", "q", "u", limit, limit, limit, ["q"])
    plan = fetch_all(f"EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF) SELECT {admission._ROOM}", condition)
    return [line for (line,) in plan if "on queue_app_task" in line]


def test_tasks_are_counted_only_where_their_index_could_hold_as_many_as_the_limit(waiting):
    assert all("never executed" in line for line in reads(10_000_000))
    assert not all("never executed" in line for line in reads(ROWS + 1))
