"""task_filter: the queries of lists use indexes."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from django.db import connection

from queue_app.core.ids import first_at
from queue_app.core.priorities import Band
from queue_app.models import Task
from queue_app.services.read import task_filter
from queue_app.services.read.inspect import count_tasks
from queue_app.services.read.task_filter import TaskFilter, has_index, limits_of_ids, matching, parts
from tests.support.factories import AttemptFactory, TaskFactory

pytestmark = pytest.mark.django_db
NOW = datetime(2026, 11, 1, tzinfo=UTC)


@pytest.fixture
def plan():
    """Return the plan for a large table, in which PostgreSQL avoids a full scan."""
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL enable_seqscan = off")
    return lambda tasks: tasks.explain()


def test_an_index_finds_ended_tasks_by_type(plan):
    waiting, ended = parts(TaskFilter(task_types=["shop.pay"]), Task.objects.all())
    with connection.cursor() as cursor:  # which on an empty table are as good
        cursor.execute("SET LOCAL enable_bitmapscan = off")
        cursor.execute("DROP INDEX taskqueue_ended_pages, taskqueue_finished")
    assert "taskqueue_by_type" in plan(ended.order_by("-id")[:50])
    assert "Sort" not in plan(ended.order_by("-id")[:50])
    assert "taskqueue_by_type" not in plan(waiting)


@pytest.mark.parametrize(
    ("wanted", "index"),
    [
        (TaskFilter(concurrency_key="customer:7"), "taskqueue_by_key"),
        (TaskFilter(capabilities=["gpu"]), "taskqueue_by_capability"),
    ],
)
def test_an_index_finds_ended_tasks_by_key_or_capability(plan, wanted, index):
    waiting, ended = parts(wanted, Task.objects.all())
    with connection.cursor() as cursor:  # which on an empty table are as good
        cursor.execute("DROP INDEX taskqueue_by_type, taskqueue_ended_pages, taskqueue_finished")
    assert index in plan(ended)
    assert index not in plan(waiting)


@pytest.mark.parametrize(
    "wanted", [TaskFilter(queues=["nowhere"]), TaskFilter(bands=[Band.BACKGROUND]), TaskFilter(worker_id=UUID(int=7))]
)
def test_an_index_finds_rare_ended_tasks(plan, wanted):
    waiting, ended = parts(wanted, Task.objects.all())
    with connection.cursor() as cursor:  # which on an empty table are as good
        cursor.execute("SET LOCAL enable_indexscan = off")
        cursor.execute("DROP INDEX taskqueue_by_type, taskqueue_finished, taskqueue_by_capability")
    assert "taskqueue_ended_pages" in plan(ended)
    assert "taskqueue_ended_pages" not in plan(waiting)


@pytest.mark.parametrize("time", ["created", "queued", "started", "finished"])
def test_the_ids_of_a_list_are_those_of_its_times_and_ten_minutes_more(time):
    skew, later = timedelta(minutes=10), NOW + timedelta(days=1)
    assert limits_of_ids(TaskFilter(created_after=NOW, run_before=NOW)) == (None, None)
    wanted = TaskFilter(**{"run_before": NOW - timedelta(days=1), "created_before": later, f"{time}_before": NOW})
    assert limits_of_ids(wanted) == (None, first_at(NOW, skew))
    since = TaskFilter(created_after=NOW, queued_after=later, finished_before=later)
    assert limits_of_ids(since) == (first_at(NOW, -skew), first_at(later, skew))


def test_statistics_know_how_common_a_part_of_a_message_is(plan):
    assert "message ~~* '%50" in plan(matching(TaskFilter(error="50%")))


def test_the_parameters_of_few_unsuccessful_tasks_are_read_for_each(plan, override):
    wanted = TaskFilter(parameters=[[{"tenant": 1}]], statuses=["failed"])
    assert "SubPlan" in plan(matching(wanted))
    assert "SubPlan" not in plan(matching(replace(wanted, statuses=["failed", "completed"])))
    override(task_filter, FEW=-1)
    assert "SubPlan" not in plan(matching(wanted))


@pytest.mark.parametrize("time", ["created", "queued", "started"])
def test_a_start_time_uses_the_indexes_of_ended_and_pending_tasks(plan, time):
    with connection.cursor() as cursor:  # which on an empty table is as good
        cursor.execute("DROP INDEX taskqueue_by_type, taskqueue_ended_pages, taskqueue_lane")
    rows_read = plan(matching(TaskFilter(**{f"{time}_after": NOW})))
    assert "taskqueue_finished" in rows_read
    assert "taskqueue_waiting" in rows_read or "taskqueue_length" in rows_read


def test_the_effective_band_is_derived_only_for_pending_tasks(plan):
    waiting, ended = parts(TaskFilter(effective_bands=[Band.HIGH]), Task.objects.all())
    assert "CASE" in plan(waiting)
    assert "CASE" not in str(ended.query)
    both = TaskFilter(effective_bands=[Band.HIGH], bands=[Band.LOW], statuses=["completed"])
    assert [list(part) for part in parts(both, Task.objects.all())] == [[]]


@pytest.mark.parametrize(
    ("wanted", "leads"),
    [
        (TaskFilter(), True),
        (TaskFilter(user="alice", statuses=["failed", "pending"]), True),
        (TaskFilter(parameters=[[{"order_id": 1}]]), True),
        (TaskFilter(created_before=NOW), True),
        (TaskFilter(statuses=["completed"]), False),
        (TaskFilter(statuses=["completed"], created_before=NOW), False),
        (TaskFilter(parameters=[[{"tenant": 1}]], statuses=["failed"]), False),
        (TaskFilter(queues=["default"]), False),
    ],
)
def test_filters_with_an_index_need_no_window(wanted, leads):
    assert has_index(wanted) is leads


def test_a_count_of_errors_reads_failed_attempts_only(django_assert_num_queries):
    alices, *bobs = (TaskFactory(user=user) for user in ("alice", "bob", "bob"))
    for task, attempt, message in (
        (alices, 1, "No Route"),
        (alices, 2, "no route"),
        (bobs[0], 1, "no route"),
        (bobs[1], 1, "lost"),
    ):
        AttemptFactory(task=task, attempt=attempt, message=message)
    with django_assert_num_queries(1) as asked:
        assert count_tasks(Task.objects.all(), TaskFilter(error="no route"), exact=False) == (2, False)
    assert '"queue_app_task"' not in asked[0]["sql"]
    assert count_tasks(Task.objects.filter(user="bob"), TaskFilter(error="no route"), exact=False) == (1, False)
    assert count_tasks(Task.objects.all(), TaskFilter(error="no route", user="bob"), exact=False) == (1, False)
