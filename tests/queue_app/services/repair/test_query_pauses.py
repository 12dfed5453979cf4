"""While the queries of all executing rows pause, as under an old snapshot, the reaper uses the leases of the index."""

import uuid
from datetime import timedelta

import pytest
from django.utils import timezone

from queue_app.core.process import QueryPauses
from queue_app.exceptions import IndexUnavailable
from queue_app.index import Index
from queue_app.models import Task, Worker
from queue_app.services.lifecycle import claim as claims
from queue_app.services.lifecycle.claim import among_executing, give_back_unacknowledged
from queue_app.services.repair import reap as module
from queue_app.services.repair.reap import Reaper
from queue_app.services.repair.rebuild import rebuild_until_open
from queue_app.services.repair.reconcile import Reconciler
from queue_app.services.upkeep.jobs import pending_work
from queue_app.sql import upkeep
from queue_app.workers.scheduler import Scheduler
from tests.support.engine import assert_index_agrees, enlist, flush, put, put_many, silent, status, take
from tests.support.faults import failing
from tests.support.index_state import client_of
from tests.support.leases import release


@pytest.fixture
def clock():
    return [1000.0]


@pytest.fixture
def pauses(clock):
    """Queries of all executing rows took a minute each, so they pause for 100 minutes."""
    found = QueryPauses(1.0, lambda: clock[0])
    for query in ("due", "orphans", "overdue"):
        found.begin(query, 60.0)
    return found


@pytest.fixture
def statements(monkeypatch):
    """Let a look at all executing rows fail the test."""

    def refuse(name):
        plain = getattr(module.workers, name)

        def among_only(*args, **kwargs):
            assert kwargs.get("among", args[-1]) is not None, f"{name} of all executing rows"
            return plain(*args, **kwargs)

        monkeypatch.setattr(module.workers, name, among_only)

    refuse("reap_orphans")
    refuse("overdue")


def test_orphans_are_found_among_the_leases(engine, pauses, statements):
    [lost, kept] = put_many(2)
    hand, other = enlist(engine.worker()), enlist(engine.worker())
    take(hand), take(other)
    Worker.objects.filter(pk=hand.id).update(status="dead")
    assert Reaper(pauses).run_once() == 1
    assert (status(lost), status(kept)) == ("queued", "executing")
    assert_index_agrees()


def test_all_leases_are_read_when_a_worker_dies(engine, pauses, statements, override):
    """Although one turn otherwise reads a part of them."""
    override("queue_app.index.leases", BATCH=10)
    put_many(700)
    hand = enlist(engine.worker())
    for _ in range(7):
        take(hand, 100)
    reaper = Reaper(pauses)
    reaper._silent = silent(hand)
    assert reaper.run_once() == 700
    assert_index_agrees()


def test_stuck_tasks_are_found_among_the_leases(engine, pauses, statements):
    [stuck, _] = put_many(2)
    take(enlist(engine.worker()), 2)
    hour = timedelta(hours=1)
    Task.objects.filter(pk=stuck).update(
        started_at=timezone.now() - 2 * hour, deadline=timezone.now() - hour, leased_at=1
    )
    assert Reaper(pauses).fail_overdue() == 1
    assert status(stuck) == "scheduled"
    assert Reaper(pauses).fail_overdue() == 0


@pytest.fixture
def away():
    """Redis does not say which tasks hold a lease."""
    with failing(Index, "leased", IndexUnavailable("gone")):
        yield


def test_nothing_is_reaped_while_the_index_is_away(engine, pauses, statements, away):
    put_many(1)
    hand = enlist(engine.worker())
    take(hand)
    Worker.objects.filter(pk=hand.id).update(status="dead")
    assert Reaper(pauses).run_once() == 0
    assert Reaper(pauses).fail_overdue() == 0


def test_after_the_pause_all_executing_rows_are_read(engine, pauses, clock):
    """So an executing row that no index knows is found too."""
    [task_id] = put_many(1)
    take(enlist(engine.worker()))
    Task.objects.update(worker_id=uuid.uuid4())
    release(engine.index, [(task_id, "default")])
    reaper = Reaper(pauses)
    assert reaper.run_once() == 0
    clock[0] += 6000
    assert reaper.run_once() == 1
    assert status(task_id) == "queued"


def test_a_lost_lease_is_restored_after_the_pause_and_then_leads_to_the_row(engine, pauses, statements, clock):
    [task_id] = put_many(1)
    take(enlist(engine.worker()))
    Task.objects.update(worker_id=uuid.uuid4())
    release(engine.index, [(task_id, "default")])
    reconciler = Reconciler(pauses=QueryPauses(5.0, lambda: clock[0]))
    reconciler.pauses.begin("leases", 1.0)
    assert reconciler.run_once()["leases_restored"] == 0
    assert Reaper(pauses).run_once() == 0
    clock[0] += 100
    assert reconciler.run_once()["leases_restored"] == 1
    assert Reaper(pauses).run_once() == 1
    assert status(task_id) == "queued"


def test_a_rebuild_reads_all_executing_rows_whatever_pauses(engine, pauses, statements):
    [task_id] = put_many(1)
    take(enlist(engine.worker()))
    Task.objects.update(worker_id=uuid.uuid4())
    flush(engine)
    assert rebuild_until_open()
    assert Reaper(pauses).run_once() == 1
    assert status(task_id) == "queued"


def test_the_full_pass_rests_after_its_pages_took_long(engine):
    put_many(3)
    reconciler = Reconciler()
    reconciler.run_once()
    reconciler.pass_seconds = 1.0  # so the next pass begins 100 s after this one began
    client, lane = client_of(engine.index), f"{engine.index.keys.prefix}:lane:default\x1fa\x1f"
    Task.objects.update(queued_at=timezone.now() - timedelta(hours=1))  # out of the recent window
    reconciler.pass_began_at -= 99
    client.delete(lane)
    assert reconciler.run_once()["missing"] == 0
    reconciler.pass_began_at -= 1
    assert reconciler.run_once()["missing"] == 3


@pytest.mark.parametrize(
    ("answer", "pauses_then"), [(False, True), (True, False), (None, True)], ids=["nothing", "something", "no time"]
)
def test_a_question_that_took_long_and_found_nothing_pauses(engine, clock, monkeypatch, answer, pauses_then):
    asked = []

    def slow(names, params):
        asked.append(sorted(names))
        return dict.fromkeys(names, answer), dict.fromkeys(names & upkeep.TIMED, 0.5)

    monkeypatch.setattr("queue_app.services.upkeep.jobs.upkeep.pending_work", slow)
    pauses = QueryPauses(1.0, lambda: clock[0])
    first = pending_work({"orphans", "pauses"}, pauses)
    second = pending_work({"orphans", "pauses"}, pauses)
    assert first == {"orphans": answer, "pauses": answer}
    assert second == {"orphans": None if pauses_then else answer, "pauses": answer}
    clock[0] += 50
    pending_work({"orphans", "pauses"}, pauses)
    assert asked == [["orphans", "pauses"], ["pauses"] if pauses_then else ["orphans", "pauses"], ["orphans", "pauses"]]


def test_tasks_that_have_just_become_due_are_queued_while_the_look_at_all_rests(engine):
    """One that should have been due for longer, as after a late commit, waits for the look at all."""
    recent, old = put(run_after=timezone.now() + timedelta(hours=1)), put(run_after=timezone.now() + timedelta(hours=1))
    Task.objects.filter(pk=recent).update(run_after=timezone.now() - timedelta(seconds=5))
    Task.objects.filter(pk=old).update(run_after=timezone.now() - timedelta(minutes=5))
    scheduler = Scheduler()
    scheduler._pauses.begin("due", 60.0)
    scheduler.run_once()
    assert (status(recent), status(old)) == ("queued", "scheduled")
    scheduler._pauses._until.clear()
    for job in scheduler.jobs:
        job.due_at = 0.0
    scheduler.run_once()
    assert status(old) == "queued"


@pytest.fixture
def pausing(pauses, monkeypatch):
    """This process's queries of the executing rows of a worker, or of a token, pause."""
    pauses.begin("unacknowledged", 60.0)
    pauses.begin("in flight", 60.0)
    monkeypatch.setattr(claims, "_pauses", pauses)
    return pauses


def test_tasks_whose_grant_was_not_heard_of_are_found_among_the_leases(engine, pausing):
    [known, unheard, unleased] = put_many(3)
    hand = engine.worker("a")
    take(hand, 3)
    release(engine.index, [(unleased, "default")])
    assert give_back_unacknowledged(hand.id, [known]) == 1
    assert [status(task_id) for task_id in (known, unheard, unleased)] == ["executing", "queued", "executing"]


def test_they_are_found_among_all_rows_while_the_index_is_away(engine, pausing, away):
    [known, unheard] = put_many(2)
    hand = engine.worker("a")
    take(hand, 2)
    assert give_back_unacknowledged(hand.id, [known]) == 1
    assert [status(task_id) for task_id in (known, unheard)] == ["executing", "queued"]


def test_a_look_rests_after_it_took_long(engine, pausing, clock):
    put_many(2)
    ids = {task.id for task in take(engine.worker("a"), 2)}
    assert set(among_executing("in flight", lambda among: among)) == ids
    clock[0] += 6000
    assert among_executing("in flight", lambda among: among) is None
    assert among_executing("in flight", lambda among: among) is None, "which was quick"
