"""The leading scheduler looks whether Redis answers: it confirms that it is away, and lets claims return to it."""

import logging

import pytest

from queue_app.exceptions import IndexUnavailable
from queue_app.index import redis_index, redis_is_away, rows_index
from queue_app.services.repair import detour
from queue_app.services.upkeep.jobs import take_lead
from queue_app.services.way import vote
from queue_app.sql import snapshot
from queue_app.workers import lookout as module
from queue_app.workers.lookout import INSIST_SECONDS, STEADY_SECONDS, Lookout
from tests.support.engine import enlist, put, take_ids
from tests.support.waiting import until


class Redis:
    """What the leader finds when it looks."""

    answers = True

    def why_away(self) -> str:
        """Return why Redis is away."""
        return "" if self.answers else "It is gone."


@pytest.fixture
def redis(monkeypatch):
    """Redis, which seems to come and go as the test says."""
    found = Redis()
    for owner in (module, detour):
        monkeypatch.setattr(owner, "why_away", found.why_away)
    redis_is_away.clear()
    yield found
    redis_is_away.clear()


@pytest.fixture
def hand(engine):
    """One of two workers."""
    enlist(engine.worker())
    return enlist(engine.worker())


@pytest.fixture
def lookout(redis, hand):
    """The lookout of the leader; its thread does not run."""
    take_lead("leader", 3600)
    return Lookout("leader", lambda: True)


@pytest.fixture
def away(lookout, redis):
    """The same, once claims read the rows; Redis answers again."""
    redis.answers = False
    vote("worker")
    lookout.run_once()
    assert snapshot.way().is_rows
    redis.answers = True
    return lookout


def test_while_redis_answers_claims_use_it(lookout):
    vote("worker")
    lookout.run_once()
    assert not snapshot.way().is_rows


def test_it_confirms_what_a_worker_found(lookout, redis):
    redis.answers = False
    lookout.run_once()
    assert not snapshot.way().is_rows, "it may be the only one"
    vote("worker")
    lookout.run_once()
    assert snapshot.way().is_rows


def test_after_a_while_it_needs_no_worker(lookout, redis, clock):
    redis.answers = False
    lookout.run_once()
    clock.now += INSIST_SECONDS
    lookout.run_once()
    assert not snapshot.way().is_rows
    clock.now += 0.1
    lookout.run_once()
    assert snapshot.way().is_rows


def test_one_answer_is_enough_to_begin_anew(lookout, redis, clock):
    for answers in (False, True, False):
        redis.answers = answers
        clock.now += INSIST_SECONDS - 0.1
        lookout.run_once()
    assert not snapshot.way().is_rows


def test_a_scheduler_that_does_not_lead_decides_nothing(redis, hand):
    take_lead("leader", 3600)
    redis.answers = False
    vote("worker")
    Lookout("another", lambda: False).run_once()
    assert not snapshot.way().is_rows


def test_where_the_rows_are_the_index_it_does_not_look(lookout, redis, settings):
    settings.TASKQUEUE = settings.TASKQUEUE | {"INDEX": "rows"}
    redis.why_away = pytest.fail
    lookout.run_once()


def test_claims_return_once_redis_was_steady(away, clock, hand):
    away.run_once()
    clock.now += STEADY_SECONDS - 0.1
    away.run_once()
    assert snapshot.way().is_rows
    clock.now += 0.1
    away.run_once()
    assert not snapshot.way().is_rows
    assert not redis_is_away.is_set()


def test_each_outage_begins_the_time_anew(away, redis, clock):
    for answers in (True, False, True):
        redis.answers = answers
        clock.now += STEADY_SECONDS - 0.1
        away.run_once()
    assert snapshot.way().is_rows
    clock.now += STEADY_SECONDS
    away.run_once()
    assert not snapshot.way().is_rows


def test_workers_that_wait_for_redis_hear_of_it_once(away, redis, hand, monkeypatch):
    heard = []
    monkeypatch.setattr(type(redis_index()), "notify_workers", lambda _self, ids: heard.append(set(ids)))
    for answers in (True, True, False, True):
        redis.answers = answers
        away.run_once()
    assert [hand.id in ids for ids in heard] == [True, True]


def test_a_return_that_fails_is_tried_again(away, clock, monkeypatch):
    away.run_once()
    clock.now += STEADY_SECONDS
    monkeypatch.setattr(module, "return_to_redis", lambda: False)
    away.run_once()
    assert snapshot.way().is_rows
    monkeypatch.setattr(module, "return_to_redis", detour.return_to_redis)
    away.run_once()
    assert not snapshot.way().is_rows


def test_rows_that_others_have_chosen_are_left_once(lookout, clock):
    """Another process has ``INDEX = "rows"``: this one would change the way to and fro with it."""
    for is_rows in (False, True):
        snapshot.raise_generation(rows_because="INDEX is 'rows'")
        redis_is_away.set()
        lookout.run_once()
        clock.now += STEADY_SECONDS
        lookout.run_once()
        assert snapshot.way().is_rows == is_rows


def test_its_thread_names_tasks_that_went_to_redis_and_outlives_errors(away, hand, monkeypatch, caplog):
    monkeypatch.setattr(module, "LOOK_SECONDS", 0.01)
    errors = [IndexUnavailable("no"), ZeroDivisionError()]
    plain = Lookout.run_once

    def run_once(self):
        if errors:
            raise errors.pop(0)
        plain(self)

    monkeypatch.setattr(Lookout, "run_once", run_once)
    redis_is_away.clear()
    task = put()  # to Redis
    redis_is_away.set()
    assert rows_index().misplaced() == [task]
    with caplog.at_level(logging.INFO, "taskqueue"):
        away.start()
        try:
            until(lambda: not rows_index().misplaced(), "it is named")
        finally:
            away.stop()
            away._thread.join(60)
    assert take_ids(hand) == [task]
    assert not errors
    assert [record.message for record in caplog.records if "lookout failed" in record.message] == [
        "the lookout failed: no",
        "the lookout failed",
    ]
