"""What became of the ticks."""

from datetime import UTC, datetime, timedelta

import pytest

from queue_app.models import Schedule, ScheduleTick, Task
from queue_app.services.lifecycle.finish import finish
from queue_app.services.schedules.edit import create_schedule
from queue_app.services.schedules.history import failures_in_a_row, last_success, recent
from queue_app.services.schedules.tick import run_due
from queue_app.sql.schedules import copy_outcomes
from tests.support.engine import done, failed, take
from tests.workers import chores

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
ECHO = "tests.workers.chores.echo"


@pytest.fixture
def worker(engine):
    return engine.worker(ECHO)


def tick(minute: int) -> None:
    run_due(now=NOON + timedelta(minutes=minute))


def test_outcomes_outlive_the_tasks(worker):
    create_schedule("minutely", {"task_type": ECHO, "args": [1], "every": 60}, now=NOON)
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
    assert last_success(ticks) == NOON + timedelta(minutes=1)
    assert ScheduleTick.objects.get(outcome="completed").run_seconds >= 0


assert chores.echo  # registered by its import
