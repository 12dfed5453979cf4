"""What queues a task again right after its attempt has ended: a signal that it waits for, or the time of its retry."""

from dataclasses import replace

import pytest

from queue_app.core.steps import Step, StepKind
from queue_app.index import Index
from queue_app.services.lifecycle.actions import run_now
from queue_app.services.lifecycle.finish import finish
from queue_app.services.lifecycle.steps import await_signal, signal
from tests.support.engine import done, failed, put, status, take

pytestmark = pytest.mark.django_db(transaction=True)
WAIT = Step(1, "wait for go", StepKind.SIGNAL, signal="go", is_done=False)


@pytest.fixture
def before_the_release(engine, monkeypatch):
    """Return a function: what it is given happens after the commit of an end, and before the slot is free."""
    release = Index.release

    def happens(action):
        def late(index, leases):
            monkeypatch.setattr(Index, "release", release)
            action()
            index.flush()
            return release(index, leases)

        monkeypatch.setattr(Index, "release", late)

    return happens


def test_a_signal_that_comes_before_the_slot_of_the_attempt_is_free_wakes_the_task_at_once(engine, before_the_release):
    """The push of the woken task finds its lease, and leaves it alone."""
    waiting, worker = put(), engine.worker("a")
    (task,) = take(worker)
    assert not await_signal(task, WAIT, None).is_done
    before_the_release(lambda: signal(waiting, "go"))
    finish([replace(done(task), waits=True)])
    assert status(waiting) == "queued"
    assert [each.id for each in take(worker)] == [waiting]


def test_a_retry_that_is_due_before_the_slot_of_the_attempt_is_free_starts_at_once(engine, before_the_release):
    retried, worker = put(), engine.worker("a")
    (task,) = take(worker)
    before_the_release(lambda: run_now(retried))
    finish([failed(task)])
    assert [each.id for each in take(worker)] == [retried]
