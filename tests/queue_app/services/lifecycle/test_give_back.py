"""give_back: a task returns to its place, and frees its own slot only."""

from queue_app.index import get_index
from queue_app.models import Queue
from queue_app.services.lifecycle.claim import give_back
from queue_app.sql import claim as claim_rows
from tests.support.engine import assert_index_agrees, put, take, take_ids
from tests.support.leases import release


def test_a_late_worker_does_not_free_the_slot_of_the_worker_that_has_the_task_now(engine, monkeypatch):
    """Guard: give_back names its lease. Another worker may claim the task between the row and the release."""
    queue, _ = Queue.objects.get_or_create(name="default")
    queue.max_concurrent = 1
    queue.save()
    task_id = put()
    first, second = engine.worker(), engine.worker()
    [mine] = take(first)
    plain = claim_rows.give_back

    def and_others_are_quicker(tasks):
        returned = plain(tasks)
        release(get_index(), [(mine.id, mine.queue)])  # as the reconciler does where a row is queued
        get_index().push(each.task for each in returned)
        assert take_ids(second) == [task_id]
        return returned

    monkeypatch.setattr(claim_rows, "give_back", and_others_are_quicker)
    assert give_back([mine]) == {mine.id}
    assert [lease.id for lease in get_index().leases("default")] == [task_id]
    assert_index_agrees()
    put()
    assert take_ids(second) == [], "the only slot is taken"
