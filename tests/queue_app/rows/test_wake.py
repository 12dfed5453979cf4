"""Which worker is called when work comes. No call is lost while its worker is busy, or when the connection breaks."""

import contextlib
import os
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor

import pytest
from django.db import connection, connections

from queue_app.core.records import ClaimedTask
from queue_app.index import Profile, WorkerMessage, get_index
from queue_app.models import Queue, Worker
from queue_app.rows import wake
from queue_app.services.control.pause import pause, resume
from queue_app.services.lifecycle.claim import claim
from queue_app.services.lifecycle.finish import finish
from queue_app.services.repair.rebuild import rebuild
from queue_app.services.worker import registration as service
from tests.support.engine import done, put, put_many
from tests.support.waiting import until

WAKE_UP, NOTIFICATION = WorkerMessage.WAKE_UP, WorkerMessage.NOTIFICATION
#: Longer than a call takes on a loaded machine, and shorter than the listener waits between two looks.
SOON = 5.0
LISTENERS = """
SELECT pid FROM pg_stat_activity WHERE query ~ '^(LISTEN|\\s*WITH called)' AND datname = current_database()
"""


class Hand:
    """A registered worker."""

    def __init__(self, kinds: str = "a", slots: int = 2, **names: tuple[str, ...]) -> None:
        self.id, self.slots = uuid.uuid4(), slots
        self.profile = Profile.of(names.get("queues", ()), kinds.split(), names.get("offers", ()), slots)
        identity = service.WorkerIdentity(id=self.id, name="w", host="h", pid=1, process_identity="far", version="1")
        service.register(identity, self.profile, concurrency=slots, heartbeat_seconds=10)
        self.claim()

    def claim(self) -> list[ClaimedTask]:
        return claim(self.profile, self.id, self.slots)

    def hears(self, seconds: float = 0.0) -> WorkerMessage | None:
        return service.wait_for_wake(self.id, seconds)

    def leave(self) -> None:
        service.deregister(self.id, self.profile, tasks_done=0)


@pytest.fixture
def hire(rows, settings):
    """Return a function that makes workers of a queue without Redis; they leave at the end."""
    settings.TASKQUEUE = {**settings.TASKQUEUE, "INDEX": "rows"}
    rebuild()
    until(lambda: not sessions(), "the listeners of earlier tests have ended")
    hands: list[Hand] = []

    def hire(*args, **options) -> Hand:
        hands.append(Hand(*args, **options))
        return hands[-1]

    yield hire
    for hand in hands:
        hand.leave()


def called(*hands: Hand) -> list[Hand]:
    """Return which of the workers hear that there may be work, once one of them has."""
    with ThreadPoolExecutor(len(hands)) as threads:
        calls = list(threads.map(lambda hand: hand.hears(SOON / 10), hands))
    return [hand for hand, call in zip(hands, calls, strict=True) if call is WAKE_UP]


def sessions() -> set[int]:
    """Return the backends of the listeners."""
    with connection.cursor() as cursor:
        cursor.execute(LISTENERS)
        return {pid for (pid,) in cursor.fetchall()}


def test_one_idle_worker_is_called_and_the_claim_that_fills_it_calls_the_next(hire):
    hands = [hire(slots=1) for _ in range(3)]
    put_many(2)
    first = called(*hands)
    assert len(first) == 1
    assert called(*hands) == []
    assert len(first[0].claim()) == 1
    second = called(*hands)
    assert len(second) == 1
    assert second != first
    assert len(second[0].claim()) == 1
    assert len(called(*hands)) <= 1, "nothing waits, but the claim that took the last one cannot know"


def test_a_worker_that_cannot_run_what_came_is_not_called(hire):
    others = [hire("b"), hire(queues=("elsewhere",)), hire(offers=("gpu",), slots=1), hire()]
    put("a", capabilities=("gpu",))
    assert called(*others) == [others[2]]
    put("a", weight=2)
    assert called(*others) == [others[3]]


def test_lanes_that_one_worker_can_run_call_one_and_others_call_more(hire):
    both, only = [hire("a b") for _ in range(2)], hire("c")
    put("a")
    put("b")
    assert len(called(*both, only)) == 1
    put("c")
    assert called(only) == [only]


def test_busy_and_draining_workers_are_not_called(hire):
    put_many(2)
    busy, draining = hire(slots=1), hire(slots=5)
    finish([done(task) for task in draining.claim()])
    service.request_drain(draining.id, by="ina")
    assert draining.hears(SOON) is NOTIFICATION
    put()
    assert called(busy, draining) == []


def test_a_call_is_kept_until_it_is_heard_and_a_change_comes_first(hire):
    hand = hire()
    put()
    get_index().notify_workers([hand.id])
    assert hand.hears(SOON) is NOTIFICATION
    assert hand.hears() is None


def test_a_freed_slot_calls_a_worker_unless_the_one_that_had_it_can_claim_it(hire):
    Queue.objects.update_or_create(name="default", defaults={"max_concurrent": 1})
    first, second = hire("a"), hire("a b")
    put("a")
    get_index().wake_idle()
    called(first, second)
    held = first.claim()
    put("a")
    assert second.claim() == []
    called(first, second)
    finish([done(task) for task in held])
    assert called(first, second) == [], "the first claims again by itself"
    held = first.claim()
    put("b")
    assert second.claim() == []
    called(first, second)
    finish([done(task) for task in held])
    assert called(first, second) == [second]


def test_the_end_of_a_pause_calls_a_worker(hire):
    hand = hire()
    pause("default")
    put()
    called(hand)
    assert hand.claim() == []
    resume("default")
    assert called(hand) == [hand]
    assert len(hand.claim()) == 1


def test_a_call_is_heard_in_the_process_in_which_its_worker_waits_now(hire):
    hand, other_process = hire(), wake.Listener()
    other_process.wait(hand.id, 0.01)
    for _ in range(5):
        with ThreadPoolExecutor(1) as thread:
            waiting = thread.submit(hand.hears, SOON)
            put()
            assert waiting.result() is WAKE_UP
        finish([done(task) for task in hand.claim()])
    other_process.forget(hand.id)


@pytest.mark.parametrize("options", [{}, {"DISABLE_SERVER_SIDE_CURSORS": True}, {"AUTOCOMMIT": False}])
def test_calls_are_heard_with_any_connection_behind_a_pooler_too(hire, options, monkeypatch):
    for name, value in options.items():
        monkeypatch.setitem(connections["default"].settings_dict, name, value)
    hand = hire()
    assert hand.hears(0.01) is None
    for _ in range(3):
        with ThreadPoolExecutor(1) as thread:
            waiting = thread.submit(hand.hears, SOON)
            put()
            assert waiting.result() is WAKE_UP
        finish([done(task) for task in hand.claim()])


def test_a_broken_connection_is_replaced_and_its_calls_are_heard(hire):
    hand = hire()
    hand.hears(0.01)
    [broken] = until(sessions, "it listens")
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_terminate_backend(%s)", [broken])
    assert hand.hears(SOON) is WAKE_UP, "it may have missed a call"
    assert until(sessions, "it listens again") != {broken}
    put()
    assert hand.hears(SOON) is WAKE_UP


def test_a_fork_listens_for_its_own_workers_and_leaves_its_parent_the_connection(hire):
    hand, other = hire(), hire("b")
    hand.hears(0.01)
    before = until(sessions, "it listens")
    pid = os.fork()
    if pid == 0:
        status = 1
        with contextlib.suppress(BaseException):
            for each in connections.all(initialized_only=True):
                each.connection = None
            status = 0 if other.hears(SOON) is NOTIFICATION else 2
        os._exit(status)
    until(lambda: len(sessions()) > 1, "the fork listens")
    get_index().notify_workers([other.id, hand.id])
    assert os.waitpid(pid, 0)[1] == 0
    assert hand.hears(SOON) is NOTIFICATION
    assert sessions() >= before


def test_the_connection_goes_with_the_last_worker(hire):
    hand = hire()
    hand.hears(0.01)
    until(sessions, "it listens")
    waiting = threading.Thread(target=hand.hears, args=[SOON * 10])
    waiting.start()
    hand.leave()
    waiting.join(SOON)
    assert not waiting.is_alive()
    until(lambda: not sessions(), "it has left")
    assert not Worker.objects.filter(pk=hand.id, status="active").exists()
    assert wake.wake() == (0, True)
