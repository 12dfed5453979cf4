"""Notifications: sent without waiting, gathered, sent again, never lost silently."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import redis

from queue_app.core.ids import uuid7
from queue_app.core.records import Entry
from queue_app.exceptions import IndexUnavailable
from queue_app.index import Index, scripts
from tests.support.index_state import client_of
from tests.support.waiting import until

LANE = "default\x1fapp.task\x1f"


@pytest.fixture
def index(own_index):
    return own_index


def waiting(index):
    return client_of(index).zcard(f"{index.keys.prefix}:lane:{LANE}")


def notify(index, count=1):
    for _ in range(count):
        index.notify([Entry(LANE, 2e13, uuid7())])


def connections(index):
    """Return the ids of all connections to the server but the one that asks."""
    client = client_of(index)
    return {each["id"] for each in client.client_list(_type="normal")} - {str(client.client_id())}


def test_the_first_notification_is_sent_at_once_and_a_burst_gathers(index, clock, written):
    notify(index)
    assert len(written) == 1
    notify(index, 20)
    assert len(written) == 1
    index.flush()
    assert waiting(index) == 21
    assert len(written) == 2


def test_the_last_notifications_of_a_burst_need_no_further_caller(index, gather):
    gather(0.005)
    notify(index, 20)
    until(lambda: waiting(index) == 20, "the burst")


def test_while_callers_come_the_thread_leaves_the_sending_to_them(index, clock):
    def after(seconds):
        clock.now += seconds
        count = len(clock.pauses)
        clock.wake()
        until(lambda: len(clock.pauses) > count, "the thread sleeps again")
        return clock.pauses[-1]

    notify(index, 2)
    until(lambda: clock.pauses == [0.005], "the thread")
    assert after(0) == pytest.approx(0.007), "the next caller sends it"
    clock.now += 0.006
    notify(index)  # sends both
    until(lambda: waiting(index) == 3, "both")
    assert after(0.002) == pytest.approx(0.005), "more may follow soon"
    notify(index)
    assert after(0.004) == pytest.approx(0.003)
    clock.now += 0.003
    clock.wake()  # no caller came
    until(lambda: waiting(index) == 4, "the last")
    count = len(clock.pauses)
    notify(index)
    until(lambda: clock.pauses[count:] == [0.005], "the next notification wakes the thread")


def test_a_script_of_this_process_sees_its_own_notifications(index, clock):
    notify(index, 3)
    assert index.depth("default").total == 3


def test_a_script_call_goes_with_the_notifications_before_it_and_gets_its_own_reply(index, clock, written):
    notify(index)
    index.flush()
    for total in (2, 3):
        notify(index)
        assert index.depth("default").total == total
        client_of(index).script_flush()  # all are refused, and sent again in their order
    assert [len(calls) for calls in written].count(2) == 2


def test_the_first_notification_arrives_at_a_server_that_knows_no_script(index):
    """A server that has just started refuses the script, and no later caller may come that reads the refusal."""
    client_of(index).script_flush()
    notify(index)
    until(lambda: client_of(index).exists(index.keys.queues), "the notification")


def test_calls_lost_with_a_broken_connection_are_sent_again(index):
    notify(index)
    index.flush()
    notify(index)  # unanswered
    client_of(index).client_kill_filter(_type="normal", skipme=True)
    notify(index)
    index.flush()
    assert waiting(index) == 3


def test_a_connection_that_the_server_closed_meanwhile_is_replaced_before_a_notification(index):
    """As after a restart of the server, or when it ends idle connections: no later caller is needed."""
    notify(index)
    until(lambda: waiting(index) == 1, "the first")
    client_of(index).client_kill_filter(_type="normal", skipme=True)
    until(lambda: not connections(index), "the server closes it")
    notify(index)
    until(lambda: waiting(index) == 2, "the second")


def test_a_failure_in_the_thread_reaches_the_next_caller(index, clock, written):
    notify(index, 2)
    until(lambda: clock.pauses, "the thread")
    written.fail = lambda: redis.ResponseError("gone")
    clock.now += 0.01
    clock.wake()
    until(lambda: len(written) == 2, "the failure")
    with pytest.raises(IndexUnavailable, match="gone"):
        until(lambda: notify(index), "its report")


def test_a_server_that_does_not_answer_costs_the_threads_that_wait_one_timeout(index, clock, written):
    """Not one timeout each in turn: the last of many threads would wait for minutes."""
    entered, release = threading.Event(), threading.Event()

    def never():
        entered.set()
        assert release.wait(60)
        return redis.TimeoutError("no answer")

    written.fail = never
    with ThreadPoolExecutor(8) as threads:
        sent = [threads.submit(notify, index)]
        assert entered.wait(60)
        before = clock.asked
        sent += [threads.submit(notify, index) for _ in range(5)]
        until(lambda: clock.asked == before + 5, "all wait")
        clock.now += 1
        release.set()
        assert {type(one.exception(10)) for one in sent} == {IndexUnavailable}
    assert len(written) == 1
    with pytest.raises(IndexUnavailable):
        notify(index)
    assert len(written) == 2, "a later caller tries again"


@pytest.mark.parametrize("ask", [Index.wake_idle, lambda index: (notify(index), index.flush())])
def test_a_connection_to_a_server_that_became_a_replica_is_closed(index, monkeypatch, ask):
    """The former primary may live on; only a new connection finds the new one."""
    others, own = connections(index), client_of(index).client_id()
    monkeypatch.setattr(scripts, "source", lambda name: f"return redis.error_reply('READONLY {name}: a replica')")
    replica = Index(index.alias, index.keys.prefix.strip("{}"))
    with pytest.raises(IndexUnavailable, match="replica"):
        ask(replica)
    assert client_of(index).client_id() != own
    until(lambda: connections(index) <= others, "its connection is closed")


def test_a_child_does_not_touch_its_parents_connection(index):
    notify(index)
    inherited = connections(index)
    index._notifier.reset()
    notify(index)
    index.flush()
    assert inherited < connections(index)
