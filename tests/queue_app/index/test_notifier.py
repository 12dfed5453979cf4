"""Notifications: sent without waiting, gathered, sent again, never lost silently."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import redis

from queue_app.core.ids import uuid7
from queue_app.core.records import Entry
from queue_app.exceptions import IndexUnavailable
from queue_app.index import Index, notifier
from tests.support.engine import until
from tests.support.index_state import client_of

LANE = "default\x1fapp.task\x1f"


@pytest.fixture
def index(settings):
    return Index("default", settings.TASKQUEUE["KEY_PREFIX"])


def waiting(index):
    return client_of(index).zcard(f"{index.keys.prefix}:lane:{LANE}")


def entry():
    return Entry(LANE, 2e13, uuid7())


def calls(index):
    return client_of(index).info("commandstats").get("cmdstat_evalsha", {"calls": 0})["calls"]


def test_the_first_notification_is_sent_at_once_and_a_burst_gathers(index, monkeypatch):
    monkeypatch.setattr(notifier, "GATHER_SECONDS", 1000.0)
    index.notify([entry()])
    index.flush()  # a server that did not know the script has it now
    index._notifier._sent_at = -1000.0
    index.notify([entry()])
    before = calls(index)
    for _ in range(20):
        index.notify([entry()])
    assert calls(index) == before
    index.flush()
    assert waiting(index) == 22
    assert calls(index) == before + 1


def test_the_last_notifications_of_a_burst_need_no_further_caller(index, monkeypatch):
    monkeypatch.setattr(notifier, "GATHER_SECONDS", 0.005)
    for _ in range(20):
        index.notify([entry()])
    until(lambda: waiting(index) == 20, "the burst")


def test_while_callers_come_the_thread_leaves_the_sending_to_them(index, monkeypatch):
    monkeypatch.setattr(notifier, "GATHER_SECONDS", 0.005)
    now = [time.monotonic()]
    monkeypatch.setattr(notifier, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=time.sleep))
    late = index._notifier._send_overdue
    index.notify([entry()])
    index.flush()
    monkeypatch.setattr(index._notifier, "_start_thread", lambda: None)
    index._notifier._sent_at = now[0]
    index.notify([entry()])
    assert late() == pytest.approx(0.007), "the next caller sends it"
    now[0] += 0.006
    index.notify([entry()])  # sends both
    until(lambda: waiting(index) == 3, "both")
    now[0] += 0.002
    assert late() == pytest.approx(0.005), "more may follow soon"
    index.notify([entry()])
    now[0] += 0.004
    assert late() == pytest.approx(0.003)
    now[0] += 0.003
    assert late() == 0.0, "no caller came"
    until(lambda: waiting(index) == 4, "the last")
    assert not index._notifier._gathering.is_set(), "the next notification wakes the thread"


def test_a_script_of_this_process_sees_its_own_notifications(index, monkeypatch):
    monkeypatch.setattr(notifier, "GATHER_SECONDS", 1000.0)
    for _ in range(3):
        index.notify([entry()])
    assert index.depth("default").total == 3


def test_a_script_call_goes_with_the_notifications_before_it_and_gets_its_own_reply(index, monkeypatch):
    monkeypatch.setattr(notifier, "GATHER_SECONDS", 1000.0)
    index.notify([entry()])
    index.flush()
    sent = []
    send = index._notifier._pipeline.send
    monkeypatch.setattr(index._notifier._pipeline, "send", lambda calls: sent.append(len(calls)) or send(calls))
    for place in (2, 3):
        sent_entry = entry()
        index.notify([sent_entry])
        assert index._call("position", LANE, sent_entry.id.bytes) == place
        client_of(index).script_flush()  # all are refused, and sent again in their order
    assert sent.count(2) == 2


def test_the_first_notification_arrives_at_a_server_that_knows_no_script(index):
    """A server that has just started refuses the script, and no later caller may come that reads the refusal."""
    index._notifier._pipeline.disconnect()
    client_of(index).script_flush()
    index.notify([entry()])
    until(lambda: client_of(index).exists(f"{index.keys.prefix}:queues"), "the notification")


def test_calls_lost_with_a_broken_connection_are_sent_again(index):
    index.notify([entry()])
    index.flush()
    index.notify([entry()])  # unanswered
    client_of(index).client_kill_filter(_type="normal", skipme=True)
    index.notify([entry()])
    index.flush()
    assert waiting(index) == 3


def test_a_connection_that_the_server_closed_meanwhile_is_replaced_before_a_notification(index):
    """As after a restart of the server, or when it ends idle connections: no later caller is needed."""
    index.notify([entry()])
    until(lambda: waiting(index) == 1, "the first")
    client_of(index).client_kill_filter(_type="normal", skipme=True)
    until(lambda: len(client_of(index).client_list(_type="normal")) == 1, "the server closes it")
    index.notify([entry()])
    until(lambda: waiting(index) == 2, "the second")


def test_a_failure_in_the_thread_reaches_the_next_caller(index, monkeypatch):
    monkeypatch.setattr(notifier, "GATHER_SECONDS", 0.001)
    index.notify([entry()])
    monkeypatch.setattr(index._notifier._pipeline, "send", Mock(side_effect=redis.ConnectionError("gone")))
    index._notifier._sent_at = time.monotonic() + 1000  # so that it gathers
    index.notify([entry()])
    until(lambda: index._notifier._failure is not None, "the failure")
    with pytest.raises(IndexUnavailable, match="gone"):
        index.notify([entry()])


class CountingLock:
    """A lock that counts how often it was requested."""

    def __init__(self) -> None:
        self.asked = 0
        self._lock = threading.Lock()

    def acquire(self) -> None:
        self.asked += 1
        self._lock.acquire()

    def release(self) -> None:
        self._lock.release()


def test_a_server_that_does_not_answer_costs_the_threads_that_wait_one_timeout(index, monkeypatch):
    """Not one timeout each in turn: the last of many threads would wait for minutes."""
    asked, entered, release = [], threading.Event(), threading.Event()
    lock = CountingLock()

    def never(_calls):
        asked.append(1)
        entered.set()
        assert release.wait(60)
        raise redis.TimeoutError("no answer")

    monkeypatch.setattr(index._notifier._pipeline, "send", never)
    monkeypatch.setattr(index._notifier._lock, "_lock", lock)
    with ThreadPoolExecutor(8) as threads:
        sent = [threads.submit(index.notify, [entry()])]
        assert entered.wait(60)
        sent += [threads.submit(index.notify, [entry()]) for _ in range(5)]
        until(lambda: lock.asked == len(sent), "all wait")
        release.set()
        assert {type(one.exception(10)) for one in sent} == {IndexUnavailable}
    assert len(asked) == 1
    with pytest.raises(IndexUnavailable):
        index.notify([entry()])
    assert len(asked) == 2, "a later caller tries again"


@pytest.mark.parametrize("ask", [Index.wake_idle, lambda index: (index.notify([entry()]), index.flush())])
def test_a_connection_to_a_server_that_became_a_replica_is_closed(index, ask):
    """The former primary may live on; only a new connection finds the new one."""
    index.flush()
    for name in ("wake_idle", "push"):
        script = client_of(index).register_script(f"return redis.error_reply('READONLY {name}: a replica')")
        index._scripts[name] = script
    index._notifier._push = index._scripts["push"]
    before = client_of(index).client_id()
    with pytest.raises(IndexUnavailable, match="replica"):
        ask(index)
    assert index._notifier._pipeline.connection is None
    assert client_of(index).client_id() != before


def test_a_child_does_not_touch_its_parents_connection(index):
    index.notify([entry()])
    inherited = index._notifier._pipeline.connection
    index._notifier.reset()
    index.notify([entry()])
    assert index._notifier._pipeline.connection is not inherited
