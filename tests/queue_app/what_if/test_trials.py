"""Suggestions with numbers: a limit that holds tasks back is simulated with another value."""

import re
from datetime import timedelta

import pytest
from django.utils import timezone

from queue_app.models import Limit, Operation, Queue
from queue_app.services.control.advice import advice
from queue_app.what_if import operation as trials
from queue_app.what_if.operation import applicable, carry_out, request_trial
from queue_app.what_if.suggest import held
from tests.queue_app.what_if.test_advice import snapshots
from tests.support.factories import TaskFactory, WorkerFactory

LIMIT = {"type": ("type", "shop.export"), "key": ("key", "api:1"), "family": ("key", "api")}


def worked(cap: int = 2, waiting: int = 12, **fields) -> None:
    """Let tasks of 60 s have run for half an hour, ``cap`` at a time, one behind the other; others still wait."""
    now, values = timezone.now(), {"task_type": "shop.export", "queue": "exports"} | fields
    for minute in range(30):
        for _ in range(cap):
            at = now - timedelta(minutes=30 - minute)
            task = TaskFactory(status="completed", created_at=at - timedelta(minutes=minute * 0.7), **values)
            ended = at + timedelta(seconds=59.9)
            type(task).objects.filter(pk=task.pk).update(
                queued_at=at - timedelta(minutes=minute * 0.7), started_at=at, finished_at=ended
            )
    for _ in range(waiting):
        TaskFactory(status="queued", created_at=now - timedelta(minutes=20), queued_at=now - timedelta(minutes=20),
                    **values)  # fmt: skip


def workers(**fields) -> None:
    hour = timezone.now() - timedelta(hours=2)
    WorkerFactory(concurrency=12, free_slots=9, task_types=["shop.export"], started_at=hour, **fields)


@pytest.mark.parametrize("case", LIMIT)
def test_a_limit_of_a_type_or_key_that_holds_tasks_back_is_simulated_and_said(engine, case):
    scope, name = LIMIT[case]
    Limit.objects.create(scope=scope, name=name, max_concurrent=2)
    worked(concurrency_key="" if case == "type" else "api:1")
    workers()
    (found,) = held()
    assert (found.limit, found.cap, found.waiting, found.idle) == (f"{scope}:{name}", 2, 12, 9)
    assert 2 < found.wanted <= 11
    (before,) = advice()
    assert f"{scope} {name}: the limit 2 holds 12 tasks, the oldest for 20 min, while 9 slots are idle." in before.text
    assert "taskqueue simulate" in before.hint
    assert request_trial() == 1
    assert request_trial() == 0, "one for each limit and value"
    operation = Operation.objects.get()
    assert advice() == [before], "it still runs"
    carry_out(operation.pk)
    (after,) = advice()
    assert after.key == before.key, "a dismissed one stays away when it has been simulated"
    assert re.search(rf"{found.wanted} would bring the wait of 95 % from (19|20) min to \d\d? min", after.text)
    assert str(operation.pk) in after.hint
    operation.refresh_from_db()
    assert applicable(operation) == {found.limit: {"max_concurrent": found.wanted}}
    assert Limit.objects.get().max_concurrent == 2, "a suggestion changes nothing"


def test_of_a_queue_too(engine):
    held_back = {"depth": {"normal": 12}, "active": 2, "max_concurrent": 2, "oldest_seconds": 1200.0, "enqueued": 3}
    snapshots("exports", completed=2, **held_back)
    worked()
    workers()
    assert request_trial() == 1
    carry_out(Operation.objects.get().pk)
    assert "would bring the wait of 95 %" in advice()[0].text


def test_no_suggestion_where_the_simulation_says_that_it_does_not_help(engine):
    """A second limit holds the same tasks back: a higher first one changes nothing."""
    Queue.objects.update_or_create(name="exports", defaults={"max_concurrent": 2})
    Limit.objects.create(scope="type", name="shop.export", max_concurrent=2)
    worked()
    workers()
    assert len(advice()) == 1
    assert request_trial() == 1
    carry_out(Operation.objects.get().pk)
    assert advice() == []


@pytest.mark.parametrize("case", ["nothing waits", "it is not in use", "adaptive", "no idle slot", "other workers",
                                  "own limit"])  # fmt: skip
def test_no_trial_without_need(engine, case):
    limit = Limit.objects.create(scope="key", name="api", max_concurrent=2)
    worked(waiting=0 if case == "nothing waits" else 12, cap=1 if case == "it is not in use" else 2,
           concurrency_key="api:1")  # fmt: skip
    if case == "adaptive":
        Limit.objects.filter(pk=limit.pk).update(adaptive="gradient2")
    if case == "own limit":
        Limit.objects.create(scope="key", name="api:1", max_concurrent=50)
    types = ["shop.other"] if case == "other workers" else ["shop.export"]
    WorkerFactory(concurrency=12, free_slots=0 if case == "no idle slot" else 9, task_types=types)
    assert request_trial() == 0
    assert advice() == []
    assert not Operation.objects.exists()


def test_without_a_server_program_there_are_no_trials(engine, monkeypatch):
    monkeypatch.setattr(trials, "has_server", lambda: False)
    Limit.objects.create(scope="type", name="shop.export", max_concurrent=2)
    worked()
    workers()
    assert request_trial() == 0
    assert "wait need 3" in advice()[0].text, "the estimate remains"


def test_a_busy_hour_is_shortened(engine, monkeypatch):
    monkeypatch.setattr(trials, "MAX_TASKS", 30)
    snapshots("exports", completed=2)
    Limit.objects.create(scope="type", name="shop.export", max_concurrent=2)
    worked()
    workers()
    assert request_trial() == 1
    window = Operation.objects.get().filter
    assert timezone.datetime.fromisoformat(window["until"]) - timezone.datetime.fromisoformat(
        window["since"]
    ) == pytest.approx(timedelta(minutes=30), abs=timedelta(seconds=1))
