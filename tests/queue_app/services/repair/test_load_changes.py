"""load: nothing is lost that is enqueued, committed or changed while a rebuild loads the tasks."""

from datetime import UTC, datetime, timedelta

import pytest

from queue_app.core.priorities import Band
from queue_app.index import Index
from queue_app.models import Queue, Task
from queue_app.services.lifecycle.actions import cancel, reprioritise
from queue_app.services.repair import rebuild as rebuilding
from queue_app.services.repair.rebuild import rebuild_if_needed
from queue_app.sql import snapshot
from tests.support.engine import assert_index_agrees, flush, put, put_many, row


@pytest.mark.parametrize("which", [1, 4, 8])
def test_what_changes_while_tasks_are_loaded_is_right_in_the_end(engine, between_steps, which):
    ids = put_many(9)
    flush(engine)
    between_steps += [
        lambda: reprioritise(ids[which], Band.HIGH),
        lambda: cancel(ids[which - 1]),
        lambda: reprioritise(ids[which], Band.BACKGROUND),
    ]
    rebuild_if_needed()
    engine.index.flush()
    assert_index_agrees()


def test_a_task_that_commits_late_is_not_lost(engine, between_steps):
    """Its place lies among tasks that are loaded already, or it comes between the look-up of a border and its move."""
    ids = put_many(9)
    flush(engine)

    def commit_late():
        late = put()
        Task.objects.filter(pk=late).update(queued_at=row(ids[2]).queued_at + timedelta(microseconds=1))
        engine.index.push(snapshot.refs([late]))

    between_steps += [commit_late] * 3
    rebuild_if_needed()
    assert_index_agrees()


@pytest.mark.parametrize("step", range(6))
def test_a_task_that_commits_between_two_questions_is_not_lost(engine, small_pages, monkeypatch, step):
    """Its push is refused as long as the border lies before it; then the rows are read after the border has moved."""
    put_many(5)
    flush(engine)
    asked = []

    def and_enqueue(plain):
        def call(*args):
            found = plain(*args)
            asked.append(None)
            if len(asked) == step + 1:
                put()
            return found

        return call

    monkeypatch.setattr(snapshot, "ends", and_enqueue(snapshot.ends))
    monkeypatch.setattr(snapshot, "between", and_enqueue(snapshot.between))
    rebuild_if_needed()
    assert_index_agrees()


def test_a_new_task_of_a_band_that_was_emptied_at_the_begin_is_loaded(engine, between_steps, before):
    """Tasks of that band were left to the load, which then found none waiting there."""
    put_many(9, priority="low")
    urgent = put(priority="critical")
    flush(engine)
    before(Index, "restore_leases", lambda: cancel(urgent))
    between_steps.append(lambda: put(priority="critical"))
    rebuild_if_needed()
    assert_index_agrees()


def test_a_new_task_is_loaded_if_its_queue_was_by_arrival_at_the_begin(engine, between_steps, after):
    def order_by(order: str) -> None:
        queue = Queue.objects.get(pk="default")
        queue.order = order
        queue.save()

    order_by("arrival")
    put_many(9, priority="low")
    flush(engine)
    after(rebuilding, "leave_to_load", lambda: order_by("fifo"))
    between_steps.append(lambda: put(priority="critical"))
    rebuild_if_needed()
    assert_index_agrees()


def test_a_task_of_the_future_is_loaded(engine):
    """PostgreSQL's clock went back."""
    Task.objects.filter(pk=put()).update(queued_at=datetime.now(UTC) + timedelta(hours=1))
    flush(engine)
    rebuild_if_needed()
    assert_index_agrees()
