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


def test_a_signal_that_comes_before_the_slot_of_the_attempt_is_free_wakes_the_task_at_once(engine, before):
    """The push of the woken task finds its lease, and leaves it alone."""
    waiting, worker = put(), engine.worker("a")
    (task,) = take(worker)
    assert not await_signal(task, WAIT, None).is_done
    before(Index, "release", lambda: (signal(waiting, "go"), engine.index.flush()))
    finish([replace(done(task), waits=True)])
    assert status(waiting) == "queued"
    assert [each.id for each in take(worker)] == [waiting]


def test_a_retry_that_is_due_before_the_slot_of_the_attempt_is_free_starts_at_once(engine, before):
    retried, worker = put(), engine.worker("a")
    (task,) = take(worker)
    before(Index, "release", lambda: (run_now(retried), engine.index.flush()))
    finish([failed(task)])
    assert [each.id for each in take(worker)] == [retried]
