"""Which scheduler leads: one at a time; it renews the lock before it expires and releases it at the end."""

import logging
from types import SimpleNamespace

from queue_app.index import get_index
from queue_app.workers import scheduler as module
from tests.support.engine import counted_calls, flush, index_away, redis_client
from tests.workers.stage import nobody_leads, tick


def test_one_leads_and_each_says_what_it_does(make, caplog):
    caplog.set_level(logging.INFO, "taskqueue")
    first, second = make(), make()
    assert first.run_once()
    assert second.run_once() == []
    lines = [message for message in caplog.messages if message.startswith("scheduler ")]
    assert lines == [
        f"scheduler {first.token[:8]} leads",
        f"scheduler {second.token[:8]} stands by: another one leads, and this one takes over if that one ends",
    ]
    assert second.run_once() == []
    assert sum("stands by" in message for message in caplog.messages) == 1
    assert (first.leads, second.leads) == (True, False)
    assert tick(first, "due") == ["due"]
    assert tick(second, "due") == []


def test_the_other_takes_over_when_the_lock_has_lapsed(make, index):
    first, second = make(), make()
    first.run_once()
    redis_client().delete(index.keys.lock("scheduler"))  # what its expiry does
    assert second.run_once()
    assert tick(first, "due") == ["due"], "for a moment both do"
    first.renew_next()
    assert tick(first, "due") == []
    assert (first.leads, second.leads) == (False, True)


def test_the_lead_is_renewed_five_times_before_it_lapses(make, monkeypatch, index):
    clock = [1000.0]
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    scheduler = make(leader_seconds=15)
    scheduler.run_once()
    renewed = []
    with counted_calls(index) as calls:
        for _ in range(30):
            clock[0] += 0.5
            before = len(calls)
            tick(scheduler, "requests")
            renewed += [clock[0]] if "lock" in calls[before:] else []
    assert renewed == [1003, 1006, 1009, 1012, 1015]


def test_a_leader_that_rebuilt_a_lost_index_takes_the_lead_again(make, index):
    scheduler = make()
    scheduler.run_once()
    flush()
    tick(scheduler, "rebuild")
    assert nobody_leads()
    tick(scheduler, "due")
    assert not nobody_leads()


def test_after_an_outage_of_the_index_a_scheduler_takes_the_lock_again_first(make):
    first, second = make(), make()
    first.run_once()
    with index_away():
        tick(first, "rebuild")
    first.ask_again()
    redis_client().delete(get_index().keys.lock("scheduler"))
    second.run_once()
    assert tick(first, "due") == []


def test_the_lock_lapses_by_itself(make, index):
    make(leader_seconds=2).run_once()
    assert 0 < redis_client().pttl(index.keys.lock("scheduler")) <= 2000


def test_the_other_takes_over_at_once_when_the_first_leaves(make):
    first, second = make(), make()
    first.run_once()
    first.resign()
    assert second.run_once()


def test_a_standby_cannot_release_the_lead_of_the_leader(make):
    first, second, third = make(), make(), make()
    first.run_once()
    second.resign()
    assert third.run_once() == []


def test_a_scheduler_on_standby_checks_often_enough(make, monkeypatch):
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: 1000.0))
    make().run_once()
    second = make(leader_seconds=30)
    second.run_once()
    assert second.next_at() == 1010
