"""Schedules tick: each tick once, in one transaction with its task."""

import json
import logging
import re
from datetime import timedelta

import pytest
from django.db import connection, transaction

from queue_app.core.ids import uuid7
from queue_app.diagnose.explain import explain
from queue_app.exceptions import InvalidTaskData
from queue_app.models import Queue, Schedule, ScheduleTick, Task, TaskPayload
from queue_app.schedules import sql as rows, tick
from queue_app.schedules.backfill import run_schedule
from queue_app.schedules.edit import delete_schedule, update_schedule
from queue_app.schedules.pause import pause_schedule, resume_schedule
from queue_app.schedules.sql import copy_outcomes
from queue_app.schedules.tick import run_due
from queue_app.services.lifecycle.actions import retry_many
from queue_app.services.lifecycle.finish import finish
from tests.support.engine import assert_index_agrees, at_once, done, failed, held_up, take
from tests.support.schedules import ECHO, NOON, every_minute, minutes

pytestmark = pytest.mark.both_ways


def history(name: str = "minutely") -> list[tuple[float, str, str]]:
    """Return (minute, kind, "task" or the first word of the reason) of the ticks, oldest first."""
    found = ScheduleTick.objects.filter(schedule__name=name).order_by("instant")
    return [
        ((each.instant - NOON).total_seconds() / 60, each.kind, "task" if each.task_id else each.reason.split()[0])
        for each in found
    ]


def end(worker) -> None:
    """Run and complete what is queued."""
    finish([done(task) for task in take(worker, 100)])


@pytest.fixture
def worker(engine):
    return engine.worker(ECHO)


# -- one tick ----------------------------------------------------------------------


def test_a_tick_enqueues_its_task_with_the_options_of_the_schedule(engine):
    every_minute(parameters={}, args=[{"a": 1}], queue="reports", priority=1, user="ada", concurrency_key="k", weight=2)
    assert run_due(now=minutes(0.5)) == 0
    assert run_due(now=minutes(1)) == 1
    task = Task.objects.get()
    assert (task.task_type, task.queue, task.priority, task.user) == (ECHO, "reports", 1, "ada")
    assert (task.concurrency_key, task.weight, task.status) == ("k", 2, "queued")
    assert TaskPayload.objects.get().args == [{"a": 1}]
    found = ScheduleTick.objects.get()
    assert (found.instant, found.task_id, found.late_seconds) == (minutes(1), task.id, 0)
    assert_index_agrees()


def test_a_tick_happens_once_although_two_schedulers_look(engine):
    every_minute()
    assert sum(at_once([lambda: run_due(now=minutes(1))] * 8)) == 1
    assert run_due(now=minutes(1.5)) == 0
    assert Task.objects.count() == ScheduleTick.objects.count() == 1


def test_a_tick_may_know_its_instant(engine):
    every_minute(args=[], instant_parameter="value")
    run_due(now=minutes(1.2))
    assert TaskPayload.objects.get().parameters == {"value": minutes(1).isoformat()}


def test_jitter_puts_a_tick_off_but_keeps_its_instant(engine):
    schedule = every_minute(jitter=30)
    assert minutes(1) < schedule.due_at < minutes(1.5)
    run_due(now=schedule.due_at - timedelta(milliseconds=1))
    assert not Task.objects.exists()
    run_due(now=schedule.due_at + timedelta(seconds=2))
    found = ScheduleTick.objects.get()
    assert (found.instant, round(found.late_seconds)) == (minutes(1), 2)


def test_a_schedule_ends(engine):
    every_minute(ends_at=minutes(2))
    run_due(now=minutes(1))
    assert Schedule.objects.get().due_at is None
    assert run_due(now=minutes(500)) == 0


def test_many_schedules_tick_in_one_transaction_although_one_is_refused(engine):
    for number in range(20):
        every_minute(f"number {number}", queue="full" if number == 7 else "default")
    Queue.objects.update_or_create(name="full", defaults={"max_length": 1})
    run_due(now=minutes(1))
    run_due(now=minutes(2))
    refused = ScheduleTick.objects.get(task_id=None)
    assert (refused.schedule.name, refused.instant) == ("number 7", minutes(2))
    assert "is full" in refused.reason
    assert Task.objects.count() == 39


def test_a_schedule_that_cannot_tick_does_not_stop_the_others(engine, caplog):
    every_minute("broken")
    every_minute("sound")
    Schedule.objects.filter(name="broken").update(every=None, cron="0 0 * * *", zone="Not/Known")
    with caplog.at_level(logging.ERROR, "taskqueue"):
        run_due(now=minutes(1))
    assert "the schedule broken cannot tick" in caplog.text
    assert history("sound") == [(1, "due", "task")]
    assert Schedule.objects.get(name="broken").due_at == minutes(2)


def test_explain_names_the_schedule(engine):
    every_minute()
    run_due(now=minutes(1))
    (*_others, reason) = explain(Task.objects.get().id).reasons
    assert (reason.code, reason.blocks, reason.details["schedule"]) == ("schedule", False, "minutely")
    assert reason.text == "It is the tick of 2026-01-01 12:01:00 UTC of the schedule minutely."


# -- missed ticks ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("catch_up", "expected"),
    [
        ("skip", [(9, "caught_up", "Missed"), (10, "due", "task")]),
        ("last", [(9, "caught_up", "Missed"), (10, "due", "task")]),
        ("all", [(7, "caught_up", "Missed"), (8, "caught_up", "task"), (9, "caught_up", "task"), (10, "due", "task")]),
    ],
)
def test_missed_ticks_run_or_are_recorded(engine, catch_up, expected):
    every_minute(catch_up=catch_up, catch_up_limit=3)
    run_due(now=minutes(10.5))
    assert history() == expected
    missed = ScheduleTick.objects.get(task_id=None)
    assert (missed.first_instant, missed.count) == (minutes(1), 7 if catch_up == "all" else 9)


def test_an_hourly_tick_that_is_ten_minutes_late_is_skipped_or_caught_up(engine):
    for catch_up in ("skip", "last"):
        every_minute(catch_up, every=3600, catch_up=catch_up)
    run_due(now=minutes(70))
    assert history("skip") == [(60, "caught_up", "Missed")]
    assert history("last") == [(60, "caught_up", "task")]


@pytest.mark.parametrize("catch_up", ["skip", "last", "all"])
def test_each_tick_of_a_leader_that_died_for_twenty_seconds_runs(engine, catch_up):
    every_minute(every=1, catch_up=catch_up)
    run_due(now=NOON + timedelta(seconds=20.5))
    assert {(kind, what) for _, kind, what in history()} == {("due", "task")}
    assert Task.objects.count() == 20


def test_a_schedule_says_how_late_a_tick_may_be(engine):
    every_minute(every=3600, catch_up="skip", grace_seconds=1800)
    run_due(now=minutes(80))
    run_due(now=minutes(160))
    assert history() == [(60, "due", "task"), (120, "caught_up", "Missed")]


@pytest.mark.parametrize("grace", [0.5, 1_000_001, float("nan")])
def test_a_grace_of_no_time_or_of_too_many_ticks_is_refused(engine, grace):
    with pytest.raises(InvalidTaskData, match=r"greater than or equal to 1|at most 60000"):
        every_minute(grace_seconds=grace)


def test_a_clock_that_goes_back_repeats_no_tick(engine):
    every_minute()
    run_due(now=minutes(5))
    run_due(now=minutes(1))
    run_due(now=minutes(6))
    assert [minute for minute, _kind, what in history() if what == "task"] == [5, 6]


# -- overlap -----------------------------------------------------------------------


def test_overlap_skip_lasts_until_the_earlier_task_has_ended(engine, worker):
    every_minute(overlap="skip")
    run_due(now=minutes(1))
    run_due(now=minutes(2))
    assert history() == [(1, "due", "task"), (2, "due", "Skipped,")]
    end(worker)
    run_due(now=minutes(3))
    assert history()[-1] == (3, "due", "task")


def test_overlap_queue_one_lets_one_tick_wait(engine, worker):
    every_minute(overlap="queue_one")
    for minute in (1, 2, 3):
        run_due(now=minutes(minute))
    assert history() == [(1, "due", "task"), (2, "due", "Waits,"), (3, "due", "Skipped,")]
    end(worker)
    run_due(now=minutes(3.1))  # a second later, not a minute
    assert history() == [(1, "due", "task"), (2, "due", "task"), (3, "due", "Skipped,")]
    assert Task.objects.count() == 2
    run_due(now=minutes(4))
    assert history()[-1] == (4, "due", "Waits,")


def test_a_tick_that_waits_survives_an_edit_and_a_pause(engine, worker):
    every_minute(overlap="queue_one")
    run_due(now=minutes(1))
    run_due(now=minutes(2))
    update_schedule("minutely", {"every": 3600}, now=minutes(2.5))
    pause_schedule("minutely")
    end(worker)
    run_due(now=minutes(3))
    assert history()[-1] == (2, "due", "Waits,")
    resume_schedule("minutely", now=minutes(3))
    run_due(now=minutes(4))
    assert history() == [(1, "due", "task"), (2, "due", "task")]


@pytest.mark.parametrize("later_ticks", [0, 200])
def test_a_task_that_staff_run_again_overlaps_however_old_it_is(engine, worker, later_ticks):
    schedule = every_minute(overlap="skip")
    run_due(now=minutes(1))
    finish([failed(task, retriable=False) for task in take(worker)])
    copy_outcomes()
    later = {"schedule": schedule, "kind": "due", "at": NOON, "outcome": "completed"}
    ScheduleTick.objects.bulk_create(
        ScheduleTick(instant=minutes(2 + number / 1000), task_id=uuid7(), **later) for number in range(later_ticks)
    )
    retry_many([Task.objects.get().id], by="ada")
    run_due(now=minutes(3))
    assert history()[-1] == (3, "due", "Skipped,")


def test_the_look_for_overlaps_does_not_read_the_history(engine):
    schedule = every_minute(overlap="skip")
    done_long_ago = [
        ScheduleTick(
            schedule=schedule, instant=minutes(-number), kind="due", at=NOON, task_id=uuid7(), outcome="completed"
        )
        for number in range(1, 3000)
    ]
    ScheduleTick.objects.bulk_create(done_long_ago)
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE queue_app_scheduletick")
        cursor.execute("EXPLAIN (ANALYZE, FORMAT JSON) " + rows._LIVE, [[schedule.pk]])
        plan = json.dumps(cursor.fetchone()[0])
    assert max(map(int, re.findall(r'"Actual Rows": (\d+)', plan))) <= 100


def test_overlap_cancel_previous(engine, worker):
    every_minute(overlap="cancel_previous")
    run_due(now=minutes(1))
    (running,) = take(worker, 1)
    run_due(now=minutes(2))
    first, second = Task.objects.order_by("id")
    assert first.id == running.id
    assert first.cancel_requested_at is not None
    assert second.status == "queued"
    run_due(now=minutes(3))
    assert Task.objects.filter(status="cancelled").count() == 1
    assert history()[-1] == (3, "due", "task")


@pytest.mark.parametrize("late", [{"catch_up": "all"}, {"grace_seconds": 600}], ids=["caught up", "late"])
def test_ticks_that_are_enqueued_together_overlap_each_other(engine, late):
    every_minute("skip", overlap="skip", **late)
    every_minute("queue", overlap="queue_one", **late)
    every_minute("cancel", overlap="cancel_previous", **late)
    run_due(now=minutes(3))
    assert [what for _, _, what in history("skip")] == ["task", "Skipped,", "Skipped,"]
    assert [what for _, _, what in history("queue")] == ["task", "Waits,", "Skipped,"]
    assert [what for _, _, what in history("cancel")] == ["Cancelled", "Cancelled", "task"]
    assert Task.objects.count() == 3


# -- pauses, edits, by hand --------------------------------------------------------


def test_a_paused_schedule_records_what_it_passes_over_in_one_row(engine):
    every_minute()
    run_due(now=minutes(1))
    pause_schedule("minutely", by="ada", reason="The bank is down.")
    for minute in (2, 3, 4):
        run_due(now=minutes(minute))
    resume_schedule("minutely", now=minutes(4.5))
    run_due(now=minutes(5))
    assert history() == [(1, "due", "task"), (4, "due", "The"), (5, "due", "task")]
    passed = ScheduleTick.objects.get(task_id=None)
    assert (passed.first_instant, passed.count) == (minutes(2), 3)
    assert passed.reason == "The schedule was paused by ada: The bank is down."


def test_an_edit_waits_for_the_tick_and_the_next_one_goes_by_it(engine):
    every_minute()
    with transaction.atomic():
        run_due(now=minutes(1))
        editing = held_up(lambda: update_schedule("minutely", {"args": [2]}))
    editing.result()
    run_due(now=minutes(2))
    assert sorted(TaskPayload.objects.values_list("args", flat=True)) == [[1], [2]]


def test_a_new_time_counts_from_the_edit(engine):
    every_minute()
    update_schedule("minutely", {"every": 600}, now=minutes(3))
    assert Schedule.objects.get().next_instant == minutes(10)


def test_run_now_does_not_move_the_next_tick(engine):
    every_minute(overlap="skip")
    pause_schedule("minutely")
    found = run_schedule("minutely", by="ada", now=minutes(0.5))
    assert (found.kind, found.reason) == ("manual", "ada ran it.")
    assert Task.objects.get().id == found.task_id
    assert Schedule.objects.get().next_instant == minutes(1)
    resume_schedule("minutely", now=minutes(0.8))
    run_due(now=minutes(1))
    assert history()[-1] == (1, "due", "Skipped,")  # the task that ran by hand is an earlier one


def test_a_schedule_is_deleted_with_its_history_but_not_its_tasks(engine):
    every_minute()
    run_due(now=minutes(1))
    delete_schedule("minutely")
    assert not ScheduleTick.objects.exists()
    assert Task.objects.count() == 1


# -- cost --------------------------------------------------------------------------


def test_a_look_costs_the_same_statements_however_many_tick(engine, django_assert_max_num_queries):
    def statements(number: int, start: int) -> int:
        for each in range(number):
            every_minute(f"{start}-{each}", overlap="skip")
        with django_assert_max_num_queries(100) as counted:
            run_due(now=minutes(1))
        return len(counted)

    few, many = statements(2, 0), statements(50, 1)
    assert many <= few


def test_a_batch_is_bounded(engine, override):
    override(tick, BATCH=2)
    for number in range(5):
        every_minute(f"number {number}")
    assert [run_due(now=minutes(1), limit=2) for _ in range(4)] == [2, 2, 1, 0]


def test_many_late_ticks_are_enqueued_in_more_than_one_transaction(engine, override):
    override(tick, ENOUGH=20)
    for number in range(5):
        every_minute(f"number {number}", every=1)
    handled = [run_due(now=NOON + timedelta(seconds=10)) for _ in range(4)]
    assert (handled, Task.objects.count()) == ([2, 2, 1, 0], 50)
