"""Steps, sleeps and signals by the test's clock."""

from datetime import timedelta
from typing import Any

import pytest

from queue_app import signal, task
from queue_app.core.states import Status
from queue_app.exceptions import InvalidTaskData, InvalidTransition, SignalTimeout, TaskNotFound
from queue_app.testing import drain

calls: list[str] = []
fail: list[int] = []


def work(name: str) -> str:
    calls.append(name)
    return name


@task(takes_context=True, max_retries=2, retry_delay=10)
def refund(context, *, timeout: float | None = None) -> Any:
    context.step("ask", work, "ask")
    context.sleep(timedelta(days=3))
    try:
        answer = context.wait_for("approved", timeout=timeout, schema={"ok": bool})
    except SignalTimeout:
        return "late"
    if fail and fail.pop():
        raise ValueError
    return [context.step("pay", work, "pay"), answer]


@pytest.fixture(autouse=True)
def backend(task_queue):
    calls.clear()
    fail.clear()
    return task_queue


def test_a_task_sleeps_waits_and_goes_on(backend, frozen_time):
    result = refund.enqueue()
    drain(to_the_end=True)
    assert [done.id for done in backend.in_state(Status.BLOCKED)] == [result.id]
    assert signal(result, "approved", {"ok": True}) is True
    fail.append(1)
    drain(to_the_end=True)
    result.refresh()
    assert result.return_value == ["pay", {"ok": True}]
    assert calls == ["ask", "pay"]
    assert len(result.errors) == 1


def test_the_clock_wakes_it(frozen_time):
    result = refund.enqueue(timeout=60)
    drain()
    frozen_time.advance(timedelta(days=2))
    assert drain() == []
    frozen_time.advance(timedelta(days=1))
    drain()
    frozen_time.advance(59)
    assert drain() == []
    frozen_time.advance(1)
    drain()
    result.refresh()
    assert result.return_value == "late"


def test_early_signals_are_kept(frozen_time):
    result = refund.enqueue()
    assert signal(result.id, "approved", {"ok": False}) is False
    drain(to_the_end=True)
    result.refresh()
    assert result.return_value == ["pay", {"ok": False}]


def test_the_errors_are_those_of_the_real_backend(frozen_time):
    result = refund.enqueue()
    drain(to_the_end=True)
    with pytest.raises(InvalidTaskData, match="ok must be of the type boolean"):
        signal(result, "approved", {"ok": 1})
    with pytest.raises(InvalidTaskData, match="is not a name"):
        signal(result, "a b")
    with pytest.raises(TaskNotFound):
        signal("0198c5d1-6f0e-7000-8000-000000000001", "approved")
    signal(result, "approved", {"ok": True})
    drain()
    with pytest.raises(InvalidTransition, match="is completed; it takes no more signals"):
        signal(result, "approved", {"ok": True})
