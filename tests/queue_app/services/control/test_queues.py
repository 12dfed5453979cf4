"""Limits of queues are edited as rows and apply from the next claim on."""

import pytest
from django.core.exceptions import ValidationError
from django.db import transaction

from queue_app.core.limits import Limits
from queue_app.exceptions import UnknownQueue
from queue_app.models import Queue, RuntimeSettings
from queue_app.services.control.pause import pause, resume
from queue_app.services.control.queues import set_queue_limits
from queue_app.services.repair.rebuild import copy_limits
from queue_app.services.repair.reconcile import Reconciler
from queue_app.sql import snapshot
from tests.support.engine import assert_index_agrees, index_away, put_many, rolled_back, take

pytestmark = pytest.mark.both_ways


def test_a_pause_applies_from_the_next_claim_on(engine):
    put_many(4)
    worker = engine.worker()
    assert len(take(worker)) == 1
    queue = pause("default", by="ann", reason="maintenance")
    assert (queue.paused, queue.paused_by, queue.paused_reason) == (True, "ann", "maintenance")
    assert take(worker) == []
    assert_index_agrees()
    assert resume("default").paused_at is None
    assert_index_agrees()
    assert len(take(worker)) == 1


def test_a_limit_applies_from_the_next_claim_on(engine):
    put_many(6)
    worker = engine.worker()
    set_queue_limits("default", max_concurrent=2)
    assert len(take(worker, 5)) == 2
    set_queue_limits("default", max_concurrent=3)
    assert len(take(worker, 5)) == 1
    set_queue_limits("default", max_concurrent=None)
    assert len(take(worker, 5)) == 3
    assert_index_agrees()


@pytest.mark.parametrize("edit", [lambda: Queue.objects.get(pk="default"), RuntimeSettings.objects.get])
def test_every_way_to_save_a_row_changes_the_limit(engine, edit):
    put_many(3)
    limited = edit()
    limited.max_concurrent = 1
    limited.save()
    assert_index_agrees()
    assert len(take(engine.worker(), 3)) == 1


def test_a_deleted_queue_has_no_limits(engine):
    set_queue_limits("default", max_concurrent=1)
    Queue.objects.get(pk="default").delete()
    put_many(3)
    assert len(take(engine.worker(), 3)) == 3


@pytest.mark.both_ways(False)
def test_nothing_is_copied_before_the_commit_or_after_a_rollback(engine):
    with transaction.atomic():
        pause("default")
        assert not engine.check().paused("default")
        with rolled_back():
            set_queue_limits("default", max_concurrent=1)
    state = assert_index_agrees()
    assert state.limits == {"default": {"paused": "1"}}


@pytest.mark.parametrize("cap", [0, -1, 2**40])
def test_an_invalid_limit_is_refused(engine, cap):
    with pytest.raises(ValidationError):
        set_queue_limits("default", max_concurrent=cap)
    assert Queue.objects.get(pk="default").max_concurrent is None


@pytest.mark.parametrize("verb", [pause, resume, lambda name: set_queue_limits(name, max_concurrent=1)])
def test_an_unknown_queue_is_refused_with_near_matches(engine, verb):
    Queue.objects.create(name="reports")
    with pytest.raises(UnknownQueue, match="reports") as refused:
        verb("report")
    assert refused.value.near_matches == ["reports"]


@pytest.mark.both_ways(False)
def test_a_lost_edit_is_copied_by_the_reconciler(engine):
    with index_away("set_limits"):
        pause("default")
    assert not engine.check().paused("default")
    assert Reconciler().run_once()["limits"] == 1
    assert_index_agrees()


def test_an_edit_made_while_the_reconciler_copies_is_not_undone(engine, after):
    """The reconciler reads the row before the edit and writes after it."""
    pause("default")
    engine.index.set_limits("q:default", Limits(max_concurrent=7, paused=True))  # so that there is something to copy
    after(snapshot, "limits", lambda: resume("default"))
    copy_limits()
    assert_index_agrees()
