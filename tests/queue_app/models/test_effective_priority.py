"""with_effective_priority: SQL and the pure function agree on every task."""

from datetime import UTC, datetime, timedelta

import pytest

from queue_app.core.priorities import Band, effective_band
from queue_app.core.states import Status
from queue_app.models import PriorityPolicy, Task
from tests.support.factories import TaskFactory

AGES = [-30, 0, 590, 610, 1190, 1210, 1790, 1810, 2390, 2410, 10**7]


@pytest.fixture
def tasks(rows) -> list[Task]:
    now = datetime.now(UTC)
    return Task.objects.bulk_create(
        Task(task_type="a", queue="q", status="queued", priority=band, created_at=now, queued_at=now - age)
        for band in Band
        for age in (timedelta(seconds=seconds) for seconds in AGES)
    )


@pytest.mark.parametrize(
    "edit",
    [{}, {Band.LOW: None}, {Band.NORMAL: None}, {Band.BACKGROUND: 30, Band.LOW: 30}, {Band.HIGH: 1, Band.CRITICAL: 1}],
)
def test_sql_and_python_agree(tasks, edit):
    for band, seconds in edit.items():
        PriorityPolicy.objects.filter(pk=band).update(promote_after_seconds=seconds)
    thresholds, now = PriorityPolicy.thresholds(), datetime.now(UTC)
    found = Task.objects.with_effective_priority().in_bulk()
    assert len(found) == len(tasks)
    for task in tasks:
        expected = effective_band(task.band, task.queued_at, now, thresholds)
        assert found[task.id].effective_band is expected
        assert found[task.id].band is task.band


@pytest.mark.parametrize("status", sorted(set(Status) - {Status.QUEUED}))
def test_only_queued_tasks_rise(rows, status):
    old = datetime.now(UTC) - timedelta(days=1)
    TaskFactory(status=status, priority=Band.LOW, created_at=old, queued_at=old, run_after=old)
    assert Task.objects.with_effective_priority().get().effective_band is Band.LOW


def test_without_policies_nothing_rises(tasks):
    PriorityPolicy.objects.all().delete()
    assert all(task.effective_band is task.band for task in Task.objects.with_effective_priority())


def test_it_can_be_filtered_and_counted(tasks):
    high = Task.objects.with_effective_priority().filter(effective_priority=Band.HIGH)
    assert high.count() == len([task for task in high if task.effective_band is Band.HIGH]) > len(AGES)


def test_a_task_that_was_not_annotated_has_its_own_band(tasks):
    assert Task.objects.order_by("priority").last().effective_band is Band.BACKGROUND
