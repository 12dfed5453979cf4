"""Rules for every SQL statement, and the plans of the hot ones."""

import itertools
import re
from pathlib import Path

import pytest
from django.db import transaction

from queue_app import sql
from queue_app.core.priorities import Band
from queue_app.sql import claim, finish, snapshot, upkeep, waiting, workflow_advance
from queue_app.sql.database import LOOK_UP, LOOK_UP_BATCH, connection, fetch_all
from tests.support.engine import put_many

MODULES = sorted(Path(sql.__file__).parent.glob("*.py"))


@pytest.mark.parametrize("module", MODULES, ids=lambda path: path.stem)
def test_no_column_is_compared_with_a_time_that_changes_from_row_to_row(module):
    """No index can be searched for such a time: a million rows would be read to find none."""
    assert not re.findall(r"[<>]=? *clock_timestamp\(\)", module.read_text())


def test_the_search_for_due_tasks_reads_only_due_tasks(db):
    fetch_all("SELECT set_config('enable_seqscan', 'off', true), set_config('enable_bitmapscan', 'off', true)")
    plan = "\n".join(line for (line,) in fetch_all(f"EXPLAIN {waiting._DUE}", [100, 100]))
    for index in ("taskqueue_due", "taskqueue_signal_timeouts"):
        assert re.search(rf"{index} on .*\n *Index Cond: \(run_after <= statement_timestamp\(\)\)", plan), plan


#: Types of the columns of a fence, of results beside them, and of the parameters of a claim.
GRANTS = ("uuid[]", "int[]", "uuid[]", "bigint[]")
RESULTS = (*GRANTS, "timestamptz[]", "text[]", "uuid[]")
CLAIM = ("uuid", "bigint", "float8", "uuid[]", "uuid[]", "bigint", "int", "uuid")


@pytest.mark.parametrize(
    ("prelude", "statement", "types"),
    [
        (claim._LOCK, claim.GRANT, CLAIM),
        (LOOK_UP_BATCH[0], finish._COMPLETE, (*GRANTS, "timestamptz[]", "uuid[]")),
        (LOOK_UP_BATCH[0], finish.COMPLETE_WITH_RESULTS, RESULTS),
        (finish._LOCK_CLAIMS, finish._TURN_OVER, (*RESULTS, *CLAIM, "bigint")),
    ],
    ids=["claim", "complete", "complete with results", "turn over"],
)
def test_plans_made_for_empty_tables_suit_full_ones(db, prelude, statement, types):
    """A prepared statement keeps its plan until the tables are analysed."""
    numbers = (f"${number}" for number in itertools.count(1))
    text = re.sub("%s", lambda _: next(numbers), statement)
    with transaction.atomic(), connection().cursor() as cursor:
        cursor.execute(prelude, [1] * prelude.count("%s"))
        cursor.execute(f"PREPARE of_this_test ({', '.join(types)}) AS {text}")
        cursor.execute(f"EXPLAIN EXECUTE of_this_test ({', '.join('NULL' for _ in types)})")
        plan = "\n".join(line for (line,) in cursor.fetchall())
        cursor.execute("DEALLOCATE of_this_test")
    assert re.search(r"Scan (using|on) queue_app_task_pkey\b.*\n +Index Cond: \(.*\bid = (ANY|payload)", plan), plan
    payloads = re.findall(r"queue_app_taskpayload_pkey\b.*\n +(.*)", plan)
    assert all(line.startswith("Index Cond:") for line in payloads), plan
    assert "taskqueue_" not in plan, "an index of all that waits, or runs"
    assert "Seq Scan on queue_app_task" not in plan
    assert "Merge" not in plan
    assert "Join Filter: (t.id" not in plan, "compares each row with each"


def test_the_end_of_workflow_tasks_looks_each_row_up_even_with_a_plan_made_for_empty_tables(db):
    numbers = (f"${number}" for number in itertools.count(1))
    text = re.sub("%s", lambda _: next(numbers), workflow_advance._COMPLETE)
    with transaction.atomic(), connection().cursor() as cursor:
        cursor.execute(LOOK_UP[0])
        cursor.execute(f"PREPARE of_this_test ({', '.join(GRANTS)}, timestamptz[], text[]) AS {text}")
        cursor.execute("EXPLAIN EXECUTE of_this_test (NULL, NULL, NULL, NULL, NULL, NULL)")
        plan = "\n".join(line for (line,) in cursor.fetchall())
        cursor.execute("DEALLOCATE of_this_test")
    assert set(re.findall(r"Scan (?:using|on) (\w+)(?: on|  \()", plan)) >= {"queue_app_task_pkey"}, plan
    assert set(re.findall(r"taskqueue_\w+", plan)) == {"taskqueue_dependants"}, "an index of all that waits, or runs"
    assert not re.search("Seq Scan|Hash Join|Merge", plan), plan


@pytest.mark.parametrize("waiting_tasks", [0, 3, 300])
@pytest.mark.parametrize(
    ("statement", "more"), [(snapshot._PARTS, None), (snapshot._ENDS, [40_000]), (snapshot._BETWEEN, [])]
)
def test_a_rebuild_reads_only_the_rows_of_its_step(engine, statement, more, waiting_tasks):
    """Even with statistics of another time."""
    places = {("default", Band(band)): snapshot.BEGINNING for band in range(5)}
    params = [] if more is None else [*snapshot._asked(places, dict.fromkeys(places, snapshot.END)), *more]
    put_many(waiting_tasks)
    with transaction.atomic():
        fetch_all(snapshot._BY_INDEX[0])
        plan = "\n".join(line for (line,) in fetch_all(f"EXPLAIN {statement}", params))
    assert set(re.findall(r"using (\w+) on queue_app_task\b", plan)) == {"taskqueue_length"}, plan
    assert not re.search("Seq Scan|Hash Join|Merge|Bitmap", plan), plan
    if more is not None:
        of_part = r"queue\)?(::text)? = asked.queue\) AND .*priority = asked.priority\) AND \(ROW"
        assert re.search(rf"Index Cond: .*{of_part}", plan), plan


#: The only index that each question may read in these tables.
PLANS = {
    "due": r"Index (Only )?Scan using taskqueue_due on queue_app_task\b",
    "recently_due": r"Index (Only )?Scan using taskqueue_due on queue_app_task\b[\s\S]*Index Cond: \(run_after > ",
    "heartbeats": "(using|on) taskqueue_live_workers",
    "schedules": "(using|on) taskqueue_schedules_due",
    "neighbours": "(using|on) taskqueue_live_workers",
    "orphans": r"using taskqueue_executing on queue_app_task\b[\s\S]*hashed SubPlan[\s\S]* taskqueue_live_workers",
    "overdue": "(using|on) taskqueue_executing",
    "workflows": "(using|on) taskqueue_open_workflows",
    "operations": "(using|on) taskqueue_operations_run",
    "generation": "queue_app_indexgeneration_pkey",
    "startable": r"(using|on) taskqueue_live_workers[\s\S]*Limit[\s\S]* taskqueue_waiting on queue_app_task\b",
    "late": r"Limit[\s\S]*Index (Only )?Scan using taskqueue_due on queue_app_task\b",
    "overrun": "(using|on) taskqueue_executing",
}
#: They read all queues, limits, schedules that pause, and upkeep jobs, which are few.
OF_SMALL_TABLES = {"adaptive", "pauses", "upkeep"}


@pytest.mark.parametrize("waiting_tasks", [0, 3])
@pytest.mark.parametrize("question", sorted(set(upkeep.questions()) - OF_SMALL_TABLES))
def test_a_question_reads_only_rows_that_could_answer_it(engine, question, waiting_tasks):
    """Even with a plan made for empty tables, because waiting and ended tasks may be millions."""
    params = upkeep.questions()[question].count("%s")
    put_many(waiting_tasks)
    with transaction.atomic(), connection().cursor() as cursor:
        cursor.execute("ANALYZE queue_app_task")
        cursor.execute(upkeep._PRELUDE)
        cursor.execute("PREPARE of_this_test AS " + upkeep.statement((question,)).replace("%s", "$1"))
        cursor.execute("EXPLAIN EXECUTE of_this_test" + "(NULL)" * params)
        plan = "\n".join(line for (line,) in cursor.fetchall())
        cursor.execute("DEALLOCATE of_this_test")
    assert re.search(PLANS[question], plan), plan
    assert "Seq Scan" not in plan
