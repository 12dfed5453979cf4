"""Statistics of task types, users and keys: each task is counted once, whatever dies, and however often it runs."""

from datetime import timedelta

import pytest

from queue_app.core.states import Status
from queue_app.models import MaintenanceJob, TaskStats
from queue_app.models.stats import StatsKind
from queue_app.services.upkeep import task_stats
from queue_app.sql import upkeep
from queue_app.sql.database import clock
from tests.support.engine import at_once
from tests.support.factories import TaskFactory, WorkerFactory
from tests.support.faults import failing

pytestmark = pytest.mark.django_db


@pytest.fixture
def end():
    def end(task_type="shop.mail", status=Status.COMPLETED, *, ago=60.0, waited=2.0, ran=0.5, **fields):
        finished_at = clock() - timedelta(seconds=ago)
        started_at = finished_at - timedelta(seconds=ran)
        fields = {"attempt": 1, "worker_id": None} | fields
        return TaskFactory(
            task_type=task_type, status=status, created_at=finished_at - timedelta(seconds=waited + ran),
            queued_at=started_at - timedelta(seconds=waited), started_at=started_at, finished_at=finished_at, **fields,
        )  # fmt: skip

    return end


def only(name, kind=StatsKind.TYPE):
    return task_stats.history(kind, name).sums["24h"]


def test_what_ended_is_counted_by_type_user_and_key(end):
    worker = WorkerFactory(version="1.7")
    for _ in range(3):
        end(user="ina", concurrency_key="customer:1", worker_id=worker.id)
    end(status=Status.DEAD_LETTER, attempt=3, failures=3, ran=8)
    end(status=Status.CANCELLED)
    end("shop.report", ran=100)
    assert task_stats.collect() == 6
    found = only("shop.mail")
    assert (found.completed, found.failed, found.other, found.failures) == (3, 1, 1, 3)
    assert found.failed_share == pytest.approx(20)
    assert found.run_p50 == pytest.approx(0.5, rel=0.3)
    assert found.run_p95 == pytest.approx(8, rel=0.5)
    assert found.wait_p50 == pytest.approx(2, rel=0.3)
    assert found.versions == {"1.7": 3}
    assert only("ina", StatsKind.USER).completed == only("customer:1", StatsKind.KEY).completed == 3
    found = task_stats.compare(StatsKind.USER, "24h", "1d")
    assert [each.name for each in found] == ["ina"], "tasks without a user are of no one"


def test_each_task_is_counted_once(end):
    end()
    assert (task_stats.collect(), task_stats.collect()) == (1, 0)
    end(ago=6)
    assert task_stats.collect() == 0, "the first run counted up to 5 s ago"
    MaintenanceJob.objects.filter(name="task_stats").update(
        progress={"until": (clock() - timedelta(seconds=30)).isoformat()}
    )
    assert task_stats.collect() == 1
    assert only("shop.mail").completed == 2


def test_a_task_whose_end_is_not_settled_is_left_to_the_next_run(end):
    end(ago=1)
    assert task_stats.collect() == 0
    assert not TaskStats.objects.exists()


def test_hours_that_are_missing_are_made_up_for_up_to_one(end):
    end(ago=3000)
    end(ago=4000)
    assert task_stats.collect() == 1
    assert task_stats.history(StatsKind.TYPE, "shop.mail").sums["24h"].completed == 1


@pytest.mark.django_db(transaction=True)
def test_a_run_that_dies_leaves_nothing_behind(end):
    end()
    MaintenanceJob.objects.bulk_create([MaintenanceJob(name="task_stats")])
    with failing(MaintenanceJob, "save", ZeroDivisionError), pytest.raises(ZeroDivisionError):
        task_stats.collect()
    assert not TaskStats.objects.exists()
    assert task_stats.collect() == 1


@pytest.mark.django_db(transaction=True)
def test_two_runs_at_once_count_each_task_once(end):
    for _ in range(20):
        end()
    at_once([task_stats.collect] * 4)
    assert only("shop.mail").completed == 20


def test_only_the_most_active_users_are_counted(end, override):
    override(task_stats, COUNTED_NAMES=1)
    end(user="ina")
    end(user="omar")
    end(user="omar")
    task_stats.collect()
    assert [each.name for each in task_stats.compare(StatsKind.USER, "24h", "1d")] == ["omar"]


def test_old_rows_are_purged(end):
    end()
    task_stats.collect()
    TaskStats.objects.update(since=clock() - timedelta(days=40))
    assert upkeep.purge_old("taskstats", 31 * 86_400, 100) == 1
    assert not TaskStats.objects.exists()
