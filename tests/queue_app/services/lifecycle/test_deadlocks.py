"""Transitions of the same tasks at the same time: no caller sees a deadlock."""

import random
from collections.abc import Iterator

import pytest
from django.db import OperationalError, connection, transaction
from psycopg.errors import DeadlockDetected

from queue_app.core.priorities import Band
from queue_app.core.records import ProgressReport
from queue_app.services.enqueue.store import enqueue_many
from queue_app.services.lifecycle.actions import cancel_many, retry_many
from queue_app.services.lifecycle.claim import give_back, recover
from queue_app.services.lifecycle.finish import finish, record_progress
from queue_app.sql import finish as finish_rows
from queue_app.sql.database import fetch_all, once_more_after_deadlock
from tests.support.engine import Side, at_once, done, failed, new, put, put_many, status, take, take_ids
from tests.support.waiting import until

pytestmark = pytest.mark.both_ways

COUNT = 20


@pytest.fixture
def slow_updates(engine) -> Iterator[None]:
    """Each changed row takes 10 ms, so that two statements overlap."""
    with connection.cursor() as cursor:
        cursor.execute("""
            CREATE FUNCTION test_slow() RETURNS trigger LANGUAGE plpgsql
                AS $$ BEGIN PERFORM pg_sleep(0.01); RETURN NEW; END $$;
            CREATE TRIGGER test_slow BEFORE UPDATE ON queue_app_task FOR EACH ROW EXECUTE FUNCTION test_slow()
        """)
    yield
    with connection.cursor() as cursor:
        cursor.execute("DROP TRIGGER test_slow ON queue_app_task; DROP FUNCTION test_slow()")


def overlapping(first, second):
    """Run both, the second when the first has begun to lock rows; raise their errors."""
    earlier = Side(first)
    until(a_row_changes, "the first locks a row")
    later = Side(second)
    return earlier.result(), later.result()


def a_row_changes() -> bool:
    """Whether a session is in the trigger of ``slow_updates``."""
    return bool(fetch_all("SELECT FROM pg_stat_activity WHERE wait_event = 'PgSleep'"))


FINISHES = {
    "completed in reverse": lambda tasks: finish([done(task) for task in reversed(tasks)]),
    "failed in reverse": lambda tasks: finish([failed(task) for task in reversed(tasks)]),
    "early ones failed, late ones completed": lambda tasks: finish(
        [failed(task) for task in tasks[:10]] + [done(task) for task in tasks[10:]]
    ),
    "given back": lambda tasks: give_back(list(reversed(tasks))),
    "recovered": lambda tasks: recover(tasks[0].worker_id, []),
    "extended": lambda tasks: record_progress(
        [ProgressReport(task.id, task.attempt, task.worker_id, extend=9.0) for task in reversed(tasks)]
    ),
}


@pytest.mark.parametrize("how", FINISHES)
def test_attempts_end_while_their_tasks_are_cancelled(engine, hand, slow_updates, how):
    ids = put_many(COUNT)
    tasks = take(hand, COUNT)
    random.shuffle(ids)
    _, cancelled = overlapping(lambda: FINISHES[how](tasks), lambda: cancel_many(ids))
    if how in ("failed in reverse", "given back", "recovered", "extended"):
        assert len(cancelled) == COUNT


def test_tasks_are_granted_while_they_are_cancelled(engine, hand, slow_updates):
    """A grant locks rows in the order of the plan; tasks of a higher band come first."""
    ids = [put(priority=Band.LOW if number < COUNT / 2 else Band.HIGH) for number in range(COUNT)]
    granted, cancelled = overlapping(lambda: take(hand, COUNT), lambda: cancel_many(ids))
    assert len(cancelled) == COUNT
    assert len(granted) <= COUNT


def test_dead_letters_are_retried_while_bulk_actions_lock_their_tasks(engine, hand, slow_updates):
    """A retry locks the tasks of dead letters first, then the others."""
    ids = put_many(COUNT, max_retries=0)
    tasks = take(hand, COUNT)
    finish([failed(task, retriable=number >= COUNT / 2) for number, task in enumerate(tasks)])
    retried, _ = overlapping(lambda: retry_many(ids), lambda: cancel_many(ids))
    assert retried == set(ids)


def test_the_same_keys_in_opposite_orders(engine):
    def enqueue_all(keys):
        return lambda: enqueue_many([new(idempotency_key=key, user="ann", parameters={"key": key}) for key in keys])

    for number in range(3):
        keys = [f"{number}:{key}" for key in range(40)]
        first, second = at_once([enqueue_all(keys), enqueue_all(keys[::-1])])
        assert [stored.id for stored in first] == [stored.id for stored in second[::-1]]
        assert sorted(stored.created for stored in [*first, *second]) == [False] * 40 + [True] * 40


def test_tasks_with_keys_keep_the_order_of_their_call(engine, hand):
    stored = enqueue_many(
        [new(idempotency_key=key, concurrency_key=key if number % 2 else "") for number, key in enumerate("cabfed")]
    )
    assert [each.id for each in stored] == take_ids(hand, 10)


class Deadlock:
    """Fails as if PostgreSQL had resolved a deadlock, ``times`` times."""

    def __init__(self, action, times=1):
        self.action, self.times, self.calls = action, times, 0

    def __call__(self, *args):
        self.calls += 1
        if self.calls <= self.times:
            raise OperationalError from DeadlockDetected()
        return self.action(*args)


def test_a_deadlock_is_tried_once_more(engine, hand, monkeypatch):
    put()
    [task] = take(hand)
    monkeypatch.setattr(finish_rows, "complete", failing := Deadlock(finish_rows.complete))
    assert finish([done(task)]) == {task.id}
    assert failing.calls == 2
    assert status(task.id) == "completed"


def test_a_second_deadlock_reaches_the_caller_and_so_does_one_of_its_own_transaction(engine):
    with pytest.raises(OperationalError):
        once_more_after_deadlock(twice := Deadlock(lambda: 1, times=2))
    assert twice.calls == 2
    with transaction.atomic(), pytest.raises(OperationalError):
        once_more_after_deadlock(inside := Deadlock(lambda: 1))
    assert inside.calls == 1
