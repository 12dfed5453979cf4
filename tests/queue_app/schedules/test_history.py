"""What became of the ticks."""

import pytest

from queue_app.models import Schedule, ScheduleTick, Task
from queue_app.schedules.sql import RECENT, SOUGHT, copy_outcomes, failing
from queue_app.schedules.tick import failures_in_a_row, last_success, recent, run_due
from queue_app.services.lifecycle.finish import finish
from tests.support.engine import done, failed, take
from tests.support.schedules import every_minute, minutes
from tests.workers import chores


@pytest.fixture
def worker(engine):
    return engine.worker(chores.echo.module_path)


def tick(minute: int) -> None:
    run_due(now=minutes(minute))


def test_outcomes_outlive_the_tasks(worker):
    every_minute()
    for minute, outcome in enumerate((done, failed, failed), start=1):
        tick(minute)
        finish([outcome(task, retriable=False) if outcome is failed else outcome(task) for task in take(worker)])
    tick(4)
    assert copy_outcomes() == 3
    assert copy_outcomes() == 0
    Task.objects.exclude(status="queued").delete()
    (ticks,) = recent(list(Schedule.objects.all())).values()
    assert [each.status for each in ticks] == ["queued", "failed", "failed", "completed"]
    assert failures_in_a_row(ticks) == 2
    assert last_success(ticks) == minutes(1)
    assert ScheduleTick.objects.get(outcome="completed").run_seconds >= 0


def test_ticks_that_wait_hide_no_failures(worker):
    every_minute()
    for minute in range(1, 4):
        tick(minute)
        finish([failed(task, retriable=False) for task in take(worker)])
    copy_outcomes()
    for minute in range(4, 30):  # no worker takes these
        tick(minute)
    finish([failed(task, retriable=False) for task in take(worker, 1)])  # its outcome has not been copied
    [found] = failing(3)
    assert (found.name, found.failures, found.times) == ("minutely", 4, "4")
    ticks = recent(list(Schedule.objects.all()), SOUGHT)[Schedule.objects.get().pk]
    assert failures_in_a_row(ticks) == 4, "the page says the same"


def test_counting_failures_stops(worker):
    every_minute()
    for minute in range(1, RECENT + 6):
        tick(minute)
    ScheduleTick.objects.update(outcome="dead_letter")
    [found] = failing(3)
    assert found.times == "20+"
    assert failures_in_a_row(recent(list(Schedule.objects.all()), SOUGHT)[Schedule.objects.get().pk]) == RECENT
