"""How fast an operation replays, and when it stops because the first ones failed again."""

from collections.abc import Callable
from datetime import datetime, timedelta

import pytest

from queue_app import signals
from queue_app.core.states import Status
from queue_app.models import DeadLetter, Task
from queue_app.services.lifecycle.actions import cancel
from queue_app.services.lifecycle.finish import finish
from queue_app.services.operations import request as requesting, run as running
from queue_app.services.operations.request import ReplayOptions, get_operation, start_replay
from queue_app.services.operations.run import advance, run_operations
from queue_app.services.read.dead_letters import DeadLetterFilter
from tests.support.dead_letters import end_next, letter_of, make_dead_letter, make_dead_letters, pass_time, step
from tests.support.engine import failed, status, take

EVERYTHING = DeadLetterFilter()
UNGUARDED = ReplayOptions(stop_after_failures=0)


@pytest.fixture(autouse=True)
def still_clock(rows, monkeypatch) -> Callable[[], datetime]:
    """Stop the clock of operations when the first one starts: only ``pass_time`` lets time pass."""
    read, stopped = requesting.clock, []

    def clock() -> datetime:
        if not stopped:
            stopped.append(read())
        return stopped[0]

    for module in (requesting, running):
        monkeypatch.setattr(module, "clock", clock)
    return clock


def progress(operation) -> tuple:
    return operation.state, operation.changed, operation.skipped


# -- pace --------------------------------------------------------------------------------------------


def test_the_pace_is_kept(engine, hand):
    make_dead_letters(hand, 12)
    operation = start_replay(EVERYTHING, ReplayOptions(rate=2, stop_after_failures=0), by="")
    assert step(operation).changed == 1, "the first at once"
    assert step(operation).changed == 1
    pass_time(operation, 0.4)
    assert step(operation).changed == 1
    pass_time(operation, 0.6)
    assert step(operation).changed == 2
    pass_time(operation, 3600)
    assert step(operation).changed == 6, "what was missed is made up for within limits"
    assert step(operation).changed == 6


def test_parts_of_a_second_add_up(engine, hand, still_clock):
    make_dead_letters(hand, 4)
    operation = start_replay(EVERYTHING, ReplayOptions(rate=2, stop_after_failures=0), by="")
    step(operation)
    pass_time(operation, 0.8)
    assert step(operation).changed == 2
    assert still_clock() - operation.paced_at == timedelta(seconds=0.3), "0.3 s are left for the next one"


# -- the first ones ------------------------------------------------------------------------------------


def test_the_first_go_ahead_alone_and_when_all_fail_again_it_stops(engine, hand, eight, hear):
    operation = start_replay(EVERYTHING, by="ann")
    assert progress(step(operation)) == ("running", 5, 0)
    assert operation.is_waiting_for_the_first
    end_next(hand, 4, well=False)
    assert progress(step(operation)) == ("running", 5, 0), "one is still to be seen"
    assert operation.failed_again == 4
    end_next(hand, 1, well=False)
    heard = hear(signals.operation_ended, "operation")
    assert progress(step(operation)) == ("stopped", 5, 0)
    assert [ended.state for ended in heard] == ["stopped"]
    assert (operation.failed_again, operation.finished_at is None) == (5, False)
    assert [letter.state for letter in DeadLetter.objects.filter(pk__in=[e.pk for e in eight[5:]])] == ["open"] * 3
    assert run_operations() == 0
    assert letter_of(eight[0].task_id).id != eight[0].id


def test_a_success_among_the_first_lets_the_others_follow(engine, hand, eight):
    operation = start_replay(EVERYTHING, by="")
    step(operation)
    end_next(hand, 1, well=True)
    assert progress(step(operation)) == ("done", 8, 0)
    assert operation.cleared_at is not None
    end_next(hand, 7, well=False)
    assert get_operation(operation.id).failed_again == 7


def test_failures_after_the_first_do_not_stop_it(engine, hand, eight, override):
    override("queue_app.services.operations.run", STEP=1)
    operation = start_replay(EVERYTHING, ReplayOptions(stop_after_failures=1), by="")
    advance(operation.id)
    end_next(hand, 1, well=True)
    advance(operation.id)
    advance(operation.id)
    end_next(hand, 2, well=False)
    assert progress(step(operation)) == ("done", 8, 0)


@pytest.mark.parametrize("fate", ["cancelled", "purged"])
def test_one_that_neither_failed_nor_completed_is_no_reason_to_stop(engine, hand, eight, fate):
    operation = start_replay(EVERYTHING, ReplayOptions(stop_after_failures=2), by="")
    step(operation)
    end_next(hand, 1, well=False)
    if fate == "cancelled":
        cancel(eight[1].task_id)
    else:
        Task.objects.filter(pk=eight[1].task_id).delete()
    assert step(operation).state == "done"


def test_a_task_that_fails_for_good_counts_as_failed_again(engine, hand, eight):
    operation = start_replay(EVERYTHING, ReplayOptions(stop_after_failures=1), by="")
    step(operation)
    finish([failed(task, retriable=False) for task in take(hand)])
    assert step(operation).state == "stopped"


def test_a_failure_with_retries_left_does_not_count_yet(engine, hand):
    letter = make_dead_letter(hand, max_retries=1)
    make_dead_letter(hand)
    operation = start_replay(EVERYTHING, ReplayOptions(stop_after_failures=1), by="")
    step(operation)
    end_next(hand, 1, well=False)
    assert status(letter.task_id) is Status.SCHEDULED
    assert progress(step(operation)) == ("running", 1, 0)


def test_fewer_than_the_first_are_done_at_once(engine, hand):
    make_dead_letters(hand, 5)
    assert progress(step(start_replay(EVERYTHING, by=""))) == ("done", 5, 0)


def test_a_skipped_task_does_not_count_among_the_first(engine, hand, eight):
    operation = start_replay(EVERYTHING, ReplayOptions(stop_after_failures=2), by="")
    Task.objects.filter(pk=eight[0].task_id).delete()
    assert progress(step(operation)) == ("running", 2, 1)
    end_next(hand, 2, well=False)
    assert step(operation).state == "stopped"
