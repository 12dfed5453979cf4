"""A task's own backoff: a function of the exception and the result that decides when or whether to retry."""

import json
import uuid
from dataclasses import replace
from datetime import timedelta

import pytest
from django.tasks.base import TaskResultStatus

from queue_app import task
from queue_app.core.states import Status
from queue_app.exceptions import Discard, Retry
from queue_app.models import Task
from queue_app.services.lifecycle.finish import finish
from queue_app.services.upkeep.promote import make_due
from queue_app.workers.executor import ClaimedAttempt, Executor
from tests.support.engine import take

asked = []


def by_its_kind(exception, task_result):
    """Wait as the exception says; do not retry a ValueError; raise for a TypeError."""
    asked.append((exception, task_result))
    return {KeyError: 30, OSError: timedelta(minutes=5), ValueError: None, TypeError: "soon", LookupError: -1}[
        type(exception)
    ]


KINDS = {
    "KeyError": KeyError, "OSError": OSError, "ValueError": ValueError, "TypeError": TypeError,
    "LookupError": LookupError, "ZeroDivisionError": ZeroDivisionError, "Retry": lambda: Retry(after=7),
    "Discard": Discard,
}  # fmt: skip


@task(backoff=by_its_kind, max_attempts=3)
def fails(kind: str) -> None:
    error = KINDS[kind]()
    raise error


@task(takes_context=True, max_attempts=3)
def looks(context) -> list[object]:
    seen = context.task_result
    if context.attempt < 3:
        raise KeyError(context.attempt)
    return [context.attempt, seen.attempts, len(seen.errors), len(set(seen.worker_ids))]


@pytest.fixture(autouse=True)
def nothing_asked():
    asked.clear()


def attempt(hand):
    """Claim one task, run it and record how it ended."""
    [claimed] = take(hand)
    outcome = Executor(hand.id).run(ClaimedAttempt(claimed, 0.0))
    finish([outcome])
    return outcome


@pytest.mark.parametrize(
    ("kind", "status", "retry_after"),
    [
        ("KeyError", Status.SCHEDULED, 30),
        ("OSError", Status.SCHEDULED, 300),
        ("ValueError", Status.FAILED, None),
        ("Retry", Status.SCHEDULED, 7),
        ("Discard", Status.FAILED, None),
    ],
)
def test_it_decides_unless_the_attempt_did(engine, kind, status, retry_after):
    hand = engine.worker(f"{__name__}.fails")
    fails.enqueue(kind)
    outcome = attempt(hand)
    assert outcome.failure.retry_after == retry_after
    assert Task.objects.get().status == status
    assert len(asked) == (kind not in {"Retry", "Discard"})


@pytest.mark.parametrize("kind", ["TypeError", "LookupError", "ZeroDivisionError"])
def test_a_broken_one_is_logged_and_the_usual_one_applies(engine, caplog, kind):
    hand = engine.worker(f"{__name__}.fails")
    fails.enqueue(kind)
    assert attempt(hand).failure.retry_after is None
    row = Task.objects.get()
    assert row.status == Status.SCHEDULED
    assert "The backoff of" in caplog.text


def test_it_sees_the_attempt_that_failed_and_those_before(engine):
    hand = engine.worker(f"{__name__}.fails")
    fails.enqueue("KeyError")
    for _ in range(3):
        attempt(hand)
        Task.objects.update(run_after="2026-01-01T00:00Z")
        make_due()
    assert Task.objects.get().status == Status.DEAD_LETTER
    assert [(type(error), seen.attempts, len(seen.errors)) for error, seen in asked] == [
        (KeyError, 1, 1),
        (KeyError, 2, 2),
    ], "it is not asked once the attempts are used up"
    assert asked[0][1].status is TaskResultStatus.FAILED
    assert asked[0][1].finished_at is not None


def test_a_context_knows_the_attempts_before(engine):
    first, second = engine.worker(f"{__name__}.looks"), engine.worker(f"{__name__}.looks")
    result = looks.enqueue()
    for hand in (first, second, first):
        attempt(hand)
        Task.objects.filter(status="scheduled").update(run_after="2026-01-01T00:00Z")
        make_due()
    result.refresh()
    assert (result.status, result.return_value) == (TaskResultStatus.SUCCESSFUL, [3, 3, 2, 2])
    assert (result.attempts, len(result.errors)) == (3, 2)
    assert result.worker_ids == [str(first.id), str(second.id), str(first.id)]
    assert [error.exception_class for error in result.errors] == [KeyError, KeyError]


def test_history_that_cannot_be_read_stops_no_attempt(engine):
    def no_database(_task_id):
        raise ConnectionError

    hand = engine.worker(f"{__name__}.looks")
    looks.enqueue()
    [claimed] = take(hand)
    later = replace(claimed, failures=2)
    assert json.loads(Executor(uuid.uuid4()).run(ClaimedAttempt(later, 0.0, no_database)).result) == [3, 1, 0, 1]
