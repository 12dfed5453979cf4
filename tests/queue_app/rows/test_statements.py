"""What holds for every statement of the rows."""

import itertools
import re
from pathlib import Path

import pytest
from django.db import transaction

from queue_app import rows
from queue_app.rows import claim, waiting
from queue_app.rows.database import connection, fetch_all

MODULES = sorted(Path(rows.__file__).parent.glob("*.py"))


@pytest.mark.parametrize("module", MODULES, ids=lambda path: path.stem)
def test_no_column_is_compared_with_a_time_that_changes_from_row_to_row(module):
    """No index can be searched for such a time: a million rows would be read to find none."""
    assert not re.findall(r"[<>]=? *clock_timestamp\(\)", module.read_text())


def test_the_look_for_due_tasks_reads_what_is_due_only(db):
    fetch_all("SELECT set_config('enable_seqscan', 'off', true), set_config('enable_bitmapscan', 'off', true)")
    plan = "\n".join(line for (line,) in fetch_all(f"EXPLAIN {waiting._DUE}", [100]))
    assert "Index Cond: (run_after <= statement_timestamp())" in plan


def test_a_claim_that_was_planned_when_the_tables_were_empty_suits_full_ones(db):
    """A prepared statement keeps its plan until the tables are analysed."""
    with transaction.atomic():
        fetch_all(claim._LOCK, [1])
        fetch_all("SELECT set_config('plan_cache_mode', 'force_generic_plan', true)")
        numbers = (f"${number}" for number in itertools.count(1))
        statement = re.sub("%s", lambda _: next(numbers), claim._GRANT)
        connection().cursor().execute(f"PREPARE grant_tasks (uuid, float8, uuid[], int, uuid) AS {statement}")
        nobody = "'00000000-0000-0000-0000-000000000000'"
        explained = fetch_all(f"EXPLAIN EXECUTE grant_tasks ({nobody}, 1, ARRAY[{nobody}::uuid], 1, {nobody})")
        connection().cursor().execute("DEALLOCATE grant_tasks")
    plan = "\n".join(line for (line,) in explained)
    assert "Index Cond: (id = ANY ($3))" in plan
    assert "Index Cond: (task_id = t.id)" in plan
    assert "Seq Scan on queue_app_task" not in plan
    assert "Hash" not in plan
    assert "Merge" not in plan
