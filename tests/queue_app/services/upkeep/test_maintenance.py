"""Maintenance: retention, the statistics of a minute, and overdue jobs."""

import uuid
from datetime import UTC, datetime, timedelta

import pytest
from django.utils import timezone

from queue_app import celery_tasks
from queue_app.core.priorities import Band
from queue_app.core.states import TERMINAL, Status
from queue_app.models import MaintenanceJob, Queue, QueueStats, Task, TaskAttempt, TaskPayload, TaskResult, Worker
from queue_app.services.lifecycle.finish import finish
from queue_app.services.upkeep import maintenance
from queue_app.services.upkeep.maintenance import purge, run_overdue, snapshot, take_snapshot
from tests.support.engine import at_once, done, failed, flush, index_away, put, put_many, take
from tests.support.factories import AttemptFactory, QueueStatsFactory, WorkerFactory

DAY = 86_400


def ended(status: Status = Status.COMPLETED, *, days_ago: float = 0, count: int = 1) -> list[uuid.UUID]:
    """Create tasks that ended that long ago, with all related rows."""
    ids = put_many(count)
    at = timezone.now() - timedelta(days=days_ago)
    Task.objects.filter(pk__in=ids).update(status=status, attempt=1, finished_at=at)
    TaskResult.objects.bulk_create(TaskResult(task_id=task_id, value=1) for task_id in ids)
    for task_id in ids:
        AttemptFactory(task_id=task_id, started_at=at)
    return ids


# -- purge ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", sorted(TERMINAL))
@pytest.mark.parametrize(("days_ago", "kept"), [(1.9, True), (2.1, False), (5.1, False)])
def test_successes_and_failures_have_separate_retention(rows, retention, status, days_ago, kept):
    retention(success=2, failure=5)
    [task_id] = ended(status, days_ago=days_ago)
    is_kept = kept or (status is not Status.COMPLETED and days_ago < 5)
    assert purge() == (0 if is_kept else 1)
    assert Task.objects.filter(pk=task_id).exists() is is_kept


def test_all_related_rows_are_purged(rows, retention):
    retention(success=1)
    ended(days_ago=2, count=3)
    [kept] = ended(days_ago=0.5)
    assert purge() == 3
    for model in (TaskPayload, TaskResult, TaskAttempt):
        assert list(model.objects.values_list("task_id", flat=True)) == [kept]


def test_pending_tasks_stay_at_any_age(rows, retention):
    retention(success=1, failure=1)
    put_many(3)
    Task.objects.update(created_at=timezone.now() - timedelta(days=100))
    assert purge() == 0


def test_small_batches_and_a_bounded_run(rows, retention, override):
    retention(success=1)
    override(maintenance, PURGE_BATCH=10)
    ended(days_ago=2, count=45)
    assert [purge(seconds=0) for _ in range(6)] == [10, 10, 10, 10, 5, 0]
    ended(days_ago=2, count=45)
    assert purge() == 45


def test_the_oldest_are_purged_first(rows, retention, override):
    retention(success=1)
    override(maintenance, PURGE_BATCH=1)
    newer, older = ended(days_ago=2), ended(days_ago=3)
    purge(seconds=0)
    assert list(Task.objects.values_list("id", flat=True)) == newer
    assert older != newer


def test_concurrent_purges_share_the_work(rows, retention, override):
    retention(success=1)
    override(maintenance, PURGE_BATCH=10)
    ended(days_ago=2, count=100)
    assert sum(at_once([purge, purge, purge])) == 100


def test_a_task_stays_until_its_idempotency_key_expires(rows, retention):
    retention(success=0.1, failure=0.1, idempotency=1)
    ids = ended(days_ago=0.5, count=2)
    Task.objects.filter(pk=ids[0]).update(idempotency_key="k", created_at=timezone.now() - timedelta(days=0.9))
    assert purge() == 1
    Task.objects.update(created_at=timezone.now() - timedelta(days=1.1))
    assert purge() == 1


def test_statistics_are_purged(rows, retention):
    retention(stats=2)
    now = timezone.now()
    for days in (1.9, 2.1):
        QueueStatsFactory(taken_at=now - timedelta(days=days))
    purge()
    assert [round((now - row.taken_at) / timedelta(days=1), 1) for row in QueueStats.objects.all()] == [1.9]


def test_workers_without_tasks_are_purged(engine, retention):
    retention(worker=1)
    long_ago = timezone.now() - timedelta(days=2)
    gone = [WorkerFactory(status=status, stopped_at=long_ago) for status in ("stopped", "dead")]
    kept = [
        WorkerFactory(status="active", last_heartbeat_at=long_ago),
        WorkerFactory(status="dead", stopped_at=timezone.now()),
    ]
    holding = WorkerFactory(status="dead", stopped_at=long_ago)
    put()
    [task] = take(engine.worker())
    Task.objects.filter(pk=task.id).update(worker_id=holding.id)
    purge()
    assert set(Worker.objects.values_list("id", flat=True)) == {holding.id, *(w.id for w in kept)}
    assert gone


# -- statistics -----------------------------------------------------------------------------------------

MINUTE = datetime(2026, 1, 1, 12, 30, tzinfo=UTC)


def test_a_minute_counts_what_began_and_ended_in_it(engine):
    ids = put_many(6)
    put_many(1, queue="other")
    first, second, third, *_ = take(engine.worker(), 6)
    finish([done(first), failed(second)])
    Task.objects.filter(pk=third.id).update(status="dead_letter", finished_at=timezone.now(), deadline=None)
    at = timezone.now() + timedelta(seconds=5)
    assert take_snapshot(at) == 2
    row = QueueStats.objects.get(queue="default")
    assert (row.enqueued, row.completed, row.failed) == (6, 1, 1), "a retry is no failure yet"
    assert QueueStats.objects.get(queue="other").enqueued == 1
    assert take_snapshot(at + timedelta(minutes=1)) == 2
    later = QueueStats.objects.get(queue="default", taken_at=at + timedelta(minutes=1))
    assert (later.enqueued, later.completed, later.failed) == (0, 0, 0)
    assert len(ids) == 6


def test_a_snapshot_includes_the_missing_minutes_before_it(engine):
    """Sums over any period are right, except for gaps of more than an hour."""
    put_many(3)
    minute = Task.objects.order_by("created_at").first().created_at.replace(second=0, microsecond=0)
    for minutes in (0, 5, 6, 90):
        take_snapshot(minute + timedelta(minutes=minutes))
    counted = QueueStats.objects.filter(queue="default").order_by("taken_at")
    assert list(counted.values_list("enqueued", flat=True)) == [0, 3, 0, 0]


def test_a_snapshot_counts_queued_and_running_tasks(engine):
    put_many(3)
    put(priority=Band.HIGH)
    put(run_after=timezone.now() + timedelta(hours=1))
    take(engine.worker(), 1)
    Queue.objects.filter(pk="default").update(max_concurrent=7)
    take_snapshot(MINUTE)
    row = QueueStats.objects.get()
    assert row.depth == {"critical": 0, "high": 0, "normal": 3, "low": 0, "background": 0}
    assert (row.active, row.scheduled, row.max_concurrent) == (1, 1, 7)
    assert row.oldest_seconds >= 0


def test_a_snapshot_without_the_index_has_the_counts_of_the_rows(engine):
    put_many(3)
    take(engine.worker(), 1)
    with index_away():
        assert take_snapshot(timezone.now() + timedelta(seconds=5)) == 1
    row = QueueStats.objects.get()
    assert (row.enqueued, row.active, row.depth["normal"]) == (3, 1, 2)
    assert row.oldest_seconds >= 0


def test_a_snapshot_during_a_rebuild_has_the_counts_of_the_rows(engine):
    put_many(3)
    flush(engine)
    take_snapshot(timezone.now() + timedelta(seconds=5))
    assert QueueStats.objects.get().depth["normal"] == 3


def test_one_row_per_minute(rows):
    assert take_snapshot(MINUTE) == 1
    assert take_snapshot(MINUTE) == 0
    assert sum(at_once([lambda: take_snapshot(MINUTE + timedelta(minutes=1))] * 4)) >= 1
    assert QueueStats.objects.count() == 2


def test_a_snapshot_is_of_a_whole_minute(rows):
    snapshot()
    taken = QueueStats.objects.get().taken_at
    assert (taken.second, taken.microsecond) == (0, 0)
    assert timedelta(0) <= timezone.now() - taken < timedelta(seconds=70)


# -- overdue jobs ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("minutes_ago", "overdue"),
    [
        (None, ["promote", "expire", "snapshot", "purge"]),
        (4, ["promote", "expire", "snapshot", "purge"]),
        (2, []),
        (-60, ["promote", "expire", "snapshot", "purge"]),
    ],
)
def test_overdue(rows, minutes_ago, overdue):
    """After three minutes without a run, or when the database's clock has stepped back since the last one."""
    if minutes_ago is not None:
        at = timezone.now() - timedelta(minutes=minutes_ago)
        MaintenanceJob.objects.bulk_create(MaintenanceJob(name=name, succeeded_at=at) for name in maintenance.JOBS)
    assert run_overdue() == overdue
    assert run_overdue() == [], "they have just run"


@pytest.mark.parametrize("hours", [1, -1])
def test_the_clock_of_a_schedulers_host_does_not_matter(rows, monkeypatch, hours):
    now = timezone.now
    with monkeypatch.context() as patch:
        patch.setattr("django.utils.timezone.now", lambda: now() + timedelta(hours=hours))
        assert run_overdue()
    assert run_overdue() == []
    MaintenanceJob.objects.update(succeeded_at=now() - timedelta(minutes=4))
    monkeypatch.setattr("django.utils.timezone.now", lambda: now() + timedelta(hours=hours))
    assert run_overdue()


def test_a_failed_job_runs_again_at_the_next_check(rows):
    with index_away("generation"):
        assert run_overdue() == ["expire", "snapshot", "purge"]
    assert "generation: gone" in MaintenanceJob.objects.get(pk="promote").error
    assert run_overdue() == ["promote"]


def test_every_job_on_demand(rows):
    assert run_overdue(every=True) == list(maintenance.JOBS)
    assert run_overdue(every=True) == list(maintenance.JOBS)


def test_a_failed_job_does_not_stop_the_others(rows, override, caplog):
    def broken() -> int:
        raise RuntimeError("no")

    ran: list[int] = []
    override(maintenance, JOBS={"first": broken, "second": lambda: ran.append(1) or 1})
    assert run_overdue(every=True) == ["second"]
    assert ran == [1]
    assert "first failed" in caplog.text


@pytest.mark.parametrize("name", sorted(maintenance.JOBS))
def test_celerys_tasks_call_the_services(monkeypatch, name):
    called: list[str] = []
    monkeypatch.setitem(maintenance.JOBS, name, lambda: called.append(name))
    task = getattr(celery_tasks, name)
    assert task.name == f"queue_app.{name}"
    task()
    assert called == [name]
