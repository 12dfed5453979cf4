"""The tasks of a test follow the rules of the queue, by the test's clock."""

from datetime import timedelta

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.db import transaction
from django.tasks import TaskResultStatus, task_backends
from django.tasks.exceptions import TaskResultDoesNotExist
from django.utils import timezone

from queue_app.core.states import Status
from queue_app.exceptions import IdempotencyConflict, PayloadTooLarge, UnserializableParameters
from queue_app.testing import MemoryBackend, drain, enqueued, freeze
from tests.queue_app.testing import chores
from tests.queue_app.testing.chores import note
from tests.support.engine import rolled_back

SUCCESSFUL, FAILED, READY = TaskResultStatus.SUCCESSFUL, TaskResultStatus.FAILED, TaskResultStatus.READY


@pytest.fixture(autouse=True)
def backend(task_queue):
    chores.calls.clear()
    return task_queue


def with_limits(settings, **limits):
    settings.TASKS = {
        "default": {"BACKEND": "queue_app.testing.MemoryBackend", "QUEUES": [], "OPTIONS": {"LIMITS": limits}}
    }
    return task_backends["default"]


# -- retries ---------------------------------------------------------------------------------------


def test_a_failure_is_tried_again_after_its_delay(backend, frozen_time):
    result = note.enqueue("a", raises="ValueError")
    assert [done.status for done in drain()] == [READY]
    frozen_time.advance(9.9)
    assert drain() == []
    frozen_time.advance(0.1)
    drain()
    frozen_time.advance(20)
    drain()
    result.refresh()
    assert (result.status, result.attempts, len(result.errors)) == (FAILED, 3, 3)
    assert [error.exception_class for error in result.errors] == [ValueError] * 3
    assert backend.in_state(Status.DEAD_LETTER)[0].id == result.id


def test_to_the_end_moves_the_clock(backend, frozen_time):
    before = frozen_time.now
    note.enqueue("a", raises="ValueError")
    assert [done.attempts for done in drain(to_the_end=True)] == [1, 2, 3]
    assert frozen_time.now - before == timedelta(seconds=30)


def test_to_the_end_freezes_the_clock_itself():
    note.enqueue("a", raises="ValueError")
    before = timezone.now()
    assert len(drain(to_the_end=True)) == 3
    assert timezone.now() - before < timedelta(seconds=30)


def test_exceptions_that_control_the_end(backend, frozen_time):
    retried, discarded, snoozed = (note.enqueue(word, raises=word) for word in ("Retry", "Discard", "Snooze"))
    drain()
    for result in (retried, discarded, snoozed):
        result.refresh()
    assert (retried.status, discarded.status, snoozed.status) == (READY, FAILED, READY)
    assert snoozed.errors == []
    frozen_time.advance(3)
    assert [done.id for done in drain()] == [retried.id]
    drain(to_the_end=True)
    snoozed.refresh()
    assert (snoozed.status, snoozed.attempts) == (SUCCESSFUL, 1)


def test_a_backoff_of_its_own(frozen_time):
    result = chores.patient.enqueue()
    drain()
    frozen_time.advance(7)
    drain()
    result.refresh()
    assert (result.status, result.attempts) == (FAILED, 2)


def test_a_timeout_by_the_clock(frozen_time):
    fine, late = chores.slow.enqueue(30), chores.slow.enqueue(31)
    drain()
    fine.refresh()
    late.refresh()
    assert (fine.status, late.status) == (SUCCESSFUL, READY)
    assert "timeout of 30 s" in late.errors[0].traceback
    assert drain(to_the_end=True)[0].status == SUCCESSFUL, "a retry may take 1.5 times as long"


def test_results_must_be_json():
    result = chores.count.enqueue()
    drain()
    result.refresh()
    assert result.status == FAILED


# -- when and in which order -----------------------------------------------------------------------


def test_delays(frozen_time):
    note.using(run_after=frozen_time.now + timedelta(minutes=5)).enqueue("later")
    note.enqueue("now")
    drain()
    assert chores.calls == ["now"]
    frozen_time.advance(timedelta(minutes=5))
    drain()
    assert chores.calls == ["now", "later"]


def test_the_most_urgent_first_then_the_oldest():
    for word, priority in (("low", -50), ("first", 0), ("second", 10), ("critical", 100)):
        note.using(priority=priority).enqueue(word)
    drain()
    assert chores.calls == ["critical", "first", "second", "low"]


def test_aged_tasks_rise(frozen_time):
    note.using(priority=-50).enqueue("aged")
    frozen_time.advance(601)
    note.enqueue("young")
    drain()
    assert chores.calls == ["aged", "young"]


def test_drain_of_one_queue_or_worker():
    note.using(queue_name="default").enqueue("a")
    rendering = chores.render.enqueue()
    assert drain(queue="other") == []
    assert [done.args for done in drain(capabilities=[])] == [["a"]]
    assert [done.id for done in drain(capabilities=["gpu", "ssd"])] == [rendering.id]


def test_a_task_that_enqueues_itself_without_end(override):
    override("queue_app.testing.runner", MAX_ATTEMPTS=20)
    chores.again.enqueue()
    with pytest.raises(RuntimeError, match="enqueue itself"):
        drain()


# -- limits -------------------------------------------------------------------------------------------


def test_a_rate_is_a_bucket_of_tokens(settings, frozen_time):
    backend = with_limits(settings, mail={"rate_count": 2, "rate_seconds": 60})
    for number in range(5):
        note.using(queue_name="mail").enqueue(str(number))
    note.enqueue("free")
    backend.drain()
    assert chores.calls == ["0", "1", "free"]
    frozen_time.advance(30)
    backend.drain()
    assert chores.calls[3:] == ["2"]
    before = frozen_time.now
    backend.drain(to_the_end=True)
    assert chores.calls[4:] == ["3", "4"]
    assert timedelta(seconds=60) <= frozen_time.now - before < timedelta(seconds=60.001)


def test_a_minimum_time_between_starts(settings, frozen_time):
    backend = with_limits(settings, mail={"min_delay_seconds": 5})
    for number in range(3):
        note.using(queue_name="mail").enqueue(str(number))
    before = frozen_time.now
    assert len(backend.drain()) == 1
    backend.drain(to_the_end=True)
    assert timedelta(seconds=10) <= frozen_time.now - before < timedelta(seconds=10.001)


def test_a_paused_queue_starts_nothing(settings):
    backend = with_limits(settings, mail={"paused": True})
    note.using(queue_name="mail").enqueue("a")
    assert backend.drain(to_the_end=True) == []


def test_retries_and_timeout_of_a_queue(settings, frozen_time):
    backend = with_limits(settings, mail={"max_retries": 0, "timeout_seconds": 1})
    result = chores.patient.using(queue_name="mail", max_attempts=None).enqueue()
    backend.drain()
    result.refresh()
    assert (result.status, result.attempts) == (FAILED, 1)


def test_an_unknown_limit_is_named(settings):
    with pytest.raises(ImproperlyConfigured, match="Did you mean 'rate_count'"):
        with_limits(settings, mail={"rate_cont": 1})


# -- what is stored ---------------------------------------------------------------------------------------


def test_keys_are_used_once():
    keyed = note.using(idempotency_key="k")
    first = keyed.enqueue("a")
    drain()
    again = keyed.enqueue("a")
    assert (again.id, again.status) == (first.id, SUCCESSFUL)
    with pytest.raises(IdempotencyConflict):
        keyed.enqueue("b")
    assert keyed.using(user="bob").enqueue("b").id != first.id


@pytest.mark.parametrize(("bad", "error"), [(object(), UnserializableParameters), ("x" * 300_000, PayloadTooLarge)])
def test_refused_parameters(backend, bad, error):
    with pytest.raises(error):
        note.enqueue(bad)
    with pytest.raises(error):
        backend.enqueue_many(note, [(("a",), {}), ((bad,), {})])
    assert backend.results == []
    assert [result.args for result in backend.enqueue_many(note, [(("a",), {}), (("b",), {})])] == [["a"], ["b"]]


@pytest.mark.django_db
def test_rolled_back_tasks_do_not_exist(backend, django_capture_on_commit_callbacks):
    kept = note.enqueue("kept")
    with rolled_back():
        gone = note.enqueue("gone")
        assert len(enqueued()) == 2
    with django_capture_on_commit_callbacks(execute=True), transaction.atomic():
        committed = note.enqueue("committed")
    assert [result.id for result in enqueued()] == [kept.id, committed.id]
    with pytest.raises(TaskResultDoesNotExist):
        gone.refresh()
    drain()
    assert chores.calls == ["kept", "committed"]


def test_clear(backend):
    note.enqueue("a")
    backend.clear()
    assert drain() == []


# -- the clock -----------------------------------------------------------------------------------------------


def test_the_clock_only_moves_forward():
    with freeze() as clock:
        assert timezone.now() is clock.now
        with pytest.raises(ValueError, match="cannot go back"):
            clock.advance(-1)
        with freeze(clock.now + timedelta(days=1)) as inner:
            assert timezone.now() == clock.now + timedelta(days=1) == inner.now
        assert timezone.now() == clock.now
    with pytest.raises(ValueError, match="aware"), freeze(timezone.make_naive(timezone.now())):
        pass


def test_the_fixture_replaces_every_alias(backend):
    assert isinstance(backend, MemoryBackend)
    assert backend is task_backends["default"]
    assert backend.queues == set()
