"""Backfill: a schedule ticks for a range of the past."""

import uuid
from datetime import datetime

import pytest

from queue_app.exceptions import InvalidTaskData, ScheduleNotFound
from queue_app.models import Operation, Schedule, ScheduleTick, Task
from queue_app.schedules.backfill import preview_backfill, start_backfill
from queue_app.schedules.edit import create_schedule, delete_schedule
from queue_app.schedules.tick import run_due
from queue_app.services.operations.request import OperationOptions, cancel_operation
from queue_app.services.operations.run import advance, run_operations
from tests.support.engine import assert_index_agrees, rolled_back
from tests.support.schedules import ECHO, NOON, minutes


@pytest.fixture(autouse=True)
def schedule(engine) -> Schedule:
    values = {"task_type": ECHO, "instant_parameter": "value", "every": 60}
    return create_schedule("minutely", values, now=NOON)


def backfill(first: float, last: float, **how) -> Operation:
    return start_backfill("minutely", minutes(first), minutes(last), by="ada", **how)


def instants() -> list[float]:
    found = ScheduleTick.objects.exclude(task_id=None).order_by("instant").values_list("instant", flat=True)
    return [(instant - NOON).total_seconds() / 60 for instant in found]


def test_a_backfill_fills_only_what_has_no_task(schedule):
    run_due(now=minutes(1))
    run_due(now=minutes(4))  # 2 and 3 are recorded as missed
    assert preview_backfill(schedule, minutes(0), minutes(6)) == [minutes(each) for each in (0, 2, 3, 5)]
    operation = backfill(0, 6, reason="The outage of the first.")
    assert (operation.total, operation.state, operation.reason) == (4, "running", "The outage of the first.")
    run_operations()
    operation.refresh_from_db()
    assert (operation.state, operation.changed, operation.skipped) == ("done", 4, 0)
    assert instants() == [0, 1, 2, 3, 4, 5]
    assert Task.objects.count() == 6
    assert_index_agrees()
    assert ScheduleTick.objects.get(instant=minutes(5)).reason == "Backfilled by ada."


def test_what_a_backfill_has_filled_does_not_tick_again():
    backfill(0, 3)
    run_operations()
    run_due(now=minutes(2))
    assert Task.objects.count() == 3


def test_two_backfills_of_one_range_fill_it_once():
    first, second = backfill(0, 5), backfill(2, 8)
    while advance(first.id) + advance(second.id):
        pass
    assert instants() == [*range(8)]
    assert Task.objects.count() == 8


def test_a_crash_during_a_step_undoes_it():
    operation = backfill(0, 5)
    with rolled_back():
        advance(operation.id)
    assert not Task.objects.exists()
    run_operations()
    assert instants() == [*range(5)]


def test_a_pace_and_a_cancel():
    operation = backfill(0, 100, options=OperationOptions(rate=0.001))
    run_operations()
    assert Task.objects.count() == 1
    cancel_operation(operation.id, by="ada")
    run_operations()
    assert Task.objects.count() == 1


def test_a_backfill_ends_although_an_edit_made_the_schedule_dense_or_its_task_is_refused():
    """Otherwise it would fail for ever, and the watchdog would take the index for the cause."""
    operation = start_backfill("minutely", minutes(0), minutes(6 * 60), by="ada")
    Schedule.objects.update(every=1, task_type="")
    run_operations()
    operation.refresh_from_db()
    assert operation.changed == 0
    assert "The task was refused" in ScheduleTick.objects.latest("instant").reason


def test_the_schedule_is_gone():
    operation = backfill(0, 5)
    delete_schedule("minutely")
    run_operations()
    operation.refresh_from_db()
    assert (operation.state, operation.changed, operation.skipped) == ("done", 0, 5)


def test_a_range_that_makes_no_sense_is_refused():
    with pytest.raises(InvalidTaskData, match="at most 10000 tasks") as refused:
        backfill(0, 60 * 24 * 365)
    assert refused.value.field == "end"
    with pytest.raises(InvalidTaskData, match="after start"):
        backfill(5, 5)
    with pytest.raises(InvalidTaskData, match="time zone"):
        start_backfill("minutely", datetime(2026, 1, 1), minutes(1), by="ada")  # noqa: DTZ001 - on purpose
    with pytest.raises(ScheduleNotFound):
        start_backfill(uuid.uuid4().hex, minutes(0), minutes(1), by="ada")
