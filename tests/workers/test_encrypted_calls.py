"""Encrypted calls that are the same as an earlier one are recognised, with the secret key only."""

import threading
from dataclasses import replace

import pytest
from django.db import connection

from queue_app.core.records import Outcome, TaskFailure
from queue_app.exceptions import IdempotencyConflict
from queue_app.models import Task
from queue_app.registry import type_of
from queue_app.services.lifecycle.claim import claim
from queue_app.services.lifecycle.finish import finish
from queue_app.services.worker.remote import is_repeated
from tests.workers.secret_tasks import CANARY, echo, fail, once, seen
from tests.workers.test_encryption import FIRST, SECOND, use


@pytest.fixture(autouse=True)
def keys(settings, captured):
    use(settings, FIRST)
    seen.clear()


def test_an_encrypted_call_is_recognised_as_the_same(engine):
    first = echo.using(idempotency_key="k").enqueue(text="a")
    assert echo.using(idempotency_key="k").enqueue(text="a").id == first.id
    with pytest.raises(IdempotencyConflict):
        echo.using(idempotency_key="k").enqueue(text="b")
    assert once.enqueue("a").id == once.enqueue("a").id != once.enqueue("b").id


def test_a_unique_key_needs_the_secret_key_and_survives_a_rotation(engine, settings):
    first = once.enqueue("a")
    key = Task.objects.get(pk=first.id).unique_key
    use(settings, SECOND, FIRST)
    assert once.enqueue("a").id == first.id
    settings.SECRET_KEY = "another"
    assert Task.objects.get(pk=once.enqueue("a").id).unique_key != key


def test_forty_callers_at_once_store_one_encrypted_task(engine):
    barrier, ids = threading.Barrier(40), []

    def call():
        barrier.wait()
        try:
            ids.append(once.enqueue("a").id)
        finally:
            connection.close()

    threads = [threading.Thread(target=call) for _ in range(40)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert len(ids) == 40
    assert len(set(ids)) == Task.objects.count() == 1


@pytest.mark.parametrize("message", [None, "canary"])
def test_a_repeated_report_of_an_http_worker_is_recognised(engine, message):
    result = fail.enqueue(CANARY)
    hand = engine.worker(type_of(fail))
    (claimed,) = claim(hand.profile, hand.id, 1)
    failure = None if message is None else TaskFailure("ValueError", message, "Traceback", retriable=False)
    finish([Outcome(claimed, claimed.started_at, claimed.started_at, '{"a": 1}', failure=failure)])
    attempt = claimed.key
    assert is_repeated(hand.id, attempt, '{"a":1}', failure)
    other = None if failure is None else replace(failure, message="another")
    assert not is_repeated(hand.id, attempt, '{"a":2}', other)
    assert result.id == str(claimed.id)
