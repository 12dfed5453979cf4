"""expire: queued tasks that waited too long expire, oldest first."""

import uuid
from datetime import UTC, datetime, timedelta

import pytest
from django.core.exceptions import ValidationError
from django.db import transaction

from queue_app import signals
from queue_app.core.events import EventFilter, EventName
from queue_app.core.states import Status
from queue_app.models import Queue, Task
from queue_app.services.enqueue import admission as module
from queue_app.services.enqueue.admission import expire_eager, expire_stale
from queue_app.services.notify import events
from queue_app.services.notify.index import on_commit
from queue_app.services.repair.reconcile import Reconciler
from queue_app.sql import snapshot
from tests.support import index_state
from tests.support.engine import (
    Side,
    assert_index_agrees,
    at_once,
    index_away,
    put,
    put_many,
    rolled_back,
    row,
    status,
    take,
    take_ids,
)
from tests.support.waiting import until


def waiting(seconds: float, **options) -> uuid.UUID:
    """Enqueue a task that was queued ``seconds`` ago."""
    task_id = put(**options)
    Task.objects.filter(pk=task_id).update(queued_at=datetime.now(UTC) - timedelta(seconds=seconds))
    on_commit(lambda index: index.push(snapshot.refs([task_id])), "push")
    return task_id


def eager(seconds: float, *names: str) -> None:
    for name in names:
        Queue.objects.update_or_create(name=name, defaults={"stale_after_seconds": seconds, "expire_eagerly": True})


def test_only_stale_tasks_expire(engine, history):
    stale, fresh, other = waiting(3601), waiting(3590), waiting(9999, queue="other")
    assert expire_stale("default") == 1
    assert history.states(stale) == "queued expired"
    assert row(stale).finished_at is not None
    assert {status(fresh), status(other)} == {Status.QUEUED}
    assert assert_index_agrees().waiting == {fresh, other}
    assert expire_stale("default") == 0
    assert take_ids(engine.worker(), 5) == [other, fresh]


def test_neither_scheduled_nor_running_nor_ended_tasks_expire(engine, history):
    running, scheduled = waiting(9999), put(run_after=datetime.now(UTC) + timedelta(hours=1))
    take(engine.worker())
    Task.objects.filter(pk=scheduled).update(run_after=datetime.now(UTC) - timedelta(hours=9))
    assert expire_stale("default", 1) == 0
    assert (status(running), status(scheduled)) == (Status.EXECUTING, Status.SCHEDULED)


def test_the_oldest_expire_first_in_any_band(engine):
    ids = [waiting(5000 - n, priority=["critical", "background"][n % 2]) for n in range(5)]
    assert expire_stale("default", 60, limit=3) == 3
    assert [status(task_id) for task_id in ids] == [Status.EXPIRED] * 3 + [Status.QUEUED] * 2
    assert_index_agrees()


@pytest.mark.parametrize("never", [-1, float("nan"), float("inf"), 1e300])
def test_a_limit_that_is_none(engine, never):
    task_id = waiting(9999)
    assert expire_stale("default", never) == 0
    assert status(task_id) == Status.QUEUED


def test_many_at_once_expire_each_task_once(engine, history):
    ids = put_many(60)
    Task.objects.update(queued_at=datetime.now(UTC) - timedelta(hours=2))
    assert sum(at_once([lambda: expire_stale("default", limit=7) for _ in range(6)])) == 42
    while expire_stale("default"):
        pass
    assert all(history.states(task_id) == "queued expired" for task_id in ids)
    assert not any(state.waiting & set(ids) for state in [assert_index_agrees()])


def test_a_claim_at_the_same_moment_wins_or_loses_whole(engine, history):
    """While the claim's row lock is held the task is skipped; it runs and is not expired."""
    task_id = waiting(9999)
    with transaction.atomic():
        Task.objects.select_for_update().get(pk=task_id)
        side = Side(lambda: expire_stale("default"))
        until(lambda: not side.running, "the expiry does not wait")
        assert side.result() == 0
    assert take_ids(engine.worker()) == [task_id]
    assert expire_stale("default") == 0
    assert history.states(task_id) == "queued executing"


def test_an_expired_task_that_the_index_still_holds_is_refused_by_its_row(engine, history):
    """Crash point: after the row, before the index."""
    stale, fresh = waiting(9999), put()
    with index_away("remove"):
        assert expire_stale("default") == 1
    assert index_state.check(engine.index).waiting == {stale, fresh}
    Reconciler().run_once()
    assert take_ids(engine.worker(), 2) == [fresh]
    assert history.states(stale) == "queued expired"
    assert_index_agrees()


def test_the_number_of_expired_tasks_is_logged(engine, caplog, hear):
    waiting(9999)
    heard = hear(signals.tasks_expired, "queue", "count")
    expire_stale("default")
    expire_stale("default")
    assert heard == [("default", 1)]
    assert "stale tasks of queue default expired: 1" in caplog.text


def test_each_expiry_is_published_after_the_commit(engine):
    one, two = waiting(9999, user="ann"), waiting(9998)
    with rolled_back():
        expire_stale("default")
    expire_stale("default")
    engine.index.flush()
    only = EventFilter(names=[EventName.EXPIRED])
    found, _ = events.read(events.FROM_THE_BEGINNING, count=1000, only=only)
    assert [(event.task_id, event.user, event.status) for event in found] == [
        (str(one), "ann", "expired"),
        (str(two), "", "expired"),
    ]


# -- eagerly -------------------------------------------------------------------------------------------


def test_only_eager_queues_expire_eagerly(engine):
    eager(60, "eager", "also")
    Queue.objects.create(name="lazy", stale_after_seconds=60)
    ids = {name: waiting(100, queue=name) for name in ("eager", "also", "lazy", "default")}
    young = waiting(50, queue="eager")
    assert expire_eager() == 2
    assert {name: status(task_id).value for name, task_id in ids.items()} == {
        "eager": "expired",
        "also": "expired",
        "lazy": "queued",
        "default": "queued",
    }
    assert status(young) == Status.QUEUED
    assert expire_eager() == 0
    assert_index_agrees()


def test_eagerly_in_batches_and_not_without_end(engine, override, monkeypatch):
    override(module, BATCH=4)
    eager(60, "q")
    put_many(19, queue="q")
    Task.objects.update(queued_at=datetime.now(UTC) - timedelta(hours=1))
    override(module, MAX_BATCHES=2)
    assert expire_eager() == 8
    monkeypatch.undo()
    assert expire_eager() == 11


def test_eagerly_needs_a_limit(rows):
    with pytest.raises(ValidationError, match="the seconds after which tasks are stale"):
        Queue(name="q", expire_eagerly=True).full_clean()
    Queue(name="q", expire_eagerly=True, stale_after_seconds=5).full_clean()
