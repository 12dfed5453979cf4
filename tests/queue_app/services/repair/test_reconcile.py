"""The reconciler compares index and rows by state, repairs differences, and writes nothing else."""

import struct
import uuid
from datetime import UTC, datetime, timedelta
from unittest.mock import Mock

import pytest
from django.utils import timezone
from hypothesis import HealthCheck, given, settings, strategies as st

from queue_app import signals
from queue_app.core.limits import score
from queue_app.core.priorities import Band
from queue_app.index import Profile
from queue_app.metrics.exposition import REPAIRS
from queue_app.models import Queue, Task
from queue_app.services.lifecycle.claim import give_back
from queue_app.services.lifecycle.finish import finish
from queue_app.services.repair import reconcile as module
from queue_app.services.repair.reap import mark_dead
from queue_app.services.repair.rebuild import rebuild
from queue_app.services.repair.reconcile import Reconciler, reconcile_everything
from queue_app.services.worker.registration import deregister
from queue_app.sql import snapshot
from tests.support import index_state
from tests.support.engine import assert_index_agrees, done, enlist, index_away, put_many, row, take, take_ids
from tests.support.index_state import client_of
from tests.support.leases import release
from tests.support.rows import erase
from tests.support.scene import Hand

NOTHING = dict.fromkeys(set(REPAIRS) - {"unreadable", "forgotten_tasks"}, 0)


@pytest.fixture
def running(engine):
    """Two tasks run and two wait; returns the running ones."""
    put_many(4)
    return take(engine.worker(), 2)


def lose_entry(scene, tasks):
    waiting = Task.objects.filter(status="queued").first()
    client_of(scene.index).zrem(f"{scene.index.keys.prefix}:lane:default\x1fa\x1f", waiting.id.bytes)


def misplace_entry(scene, tasks):
    Task.objects.filter(pk=Task.objects.filter(status="queued").first().pk).update(priority=0)


def lose_lease(scene, tasks):
    release(scene.index, [(tasks[0].id, "default")])


def leave_lease_of_ended_row(scene, tasks):
    with index_away("release"):
        finish([done(tasks[0])])


def leave_lease_of_vanished_row(scene, tasks):
    erase(Task.objects.filter(pk=tasks[0].id))


def leave_lease_of_queued_row(scene, tasks):
    with index_away("release", "push"):
        give_back([tasks[0]])


def change_limit(scene, tasks):
    Queue.objects.filter(pk="default").update(max_concurrent=5)


DAMAGES = {
    "an entry is missing": (lose_entry, {"missing": 1}),
    "an entry is misplaced": (misplace_entry, {"missing": 1}),
    "a lease is missing": (lose_lease, {"leases_restored": 1}),
    "a lease of a row that has ended": (leave_lease_of_ended_row, {"leases_ended": 1}),
    "an old lease of a queued row": (leave_lease_of_queued_row, {"leases_ended": 1}),
    "a limit differs": (change_limit, {"limits": 1}),
}


@pytest.mark.parametrize("case", DAMAGES)
def test_each_damage_is_repaired_in_one_step_and_only_it(engine, running, case, monkeypatch):
    damage, repairs = DAMAGES[case]
    damage(engine, running)
    with pytest.raises(AssertionError):
        assert_index_agrees()
    reconciler = Reconciler()
    assert reconciler.run_once() == NOTHING | repairs
    assert_index_agrees()
    assert reconciler.run_once() == NOTHING
    assert dict(reconciler.repaired) == repairs


def test_the_lease_of_a_row_that_is_gone_ends_at_the_second_look(engine, running):
    """PostgreSQL may have forgotten the row while its function runs."""
    leave_lease_of_vanished_row(engine, running)
    reconciler = Reconciler()
    assert reconciler.run_once() == NOTHING
    assert reconciler.run_once() == NOTHING | {"leases_ended": 1}
    assert_index_agrees()


def test_nothing_to_do_changes_nothing(engine, running):
    def dump() -> dict:
        client = client_of(engine.index)
        return {key: client.dump(key) for key in client.scan_iter(match=engine.index.keys.everything)}

    before = dump()
    assert Reconciler().run_once() == NOTHING
    assert dump() == before


def test_a_task_that_ends_while_leases_are_compared_takes_no_slot(engine, running, after):
    """The row was read as executing; its lease had ended before the index was read."""
    after(snapshot, "executing", lambda: finish([done(running[0])]))
    assert Reconciler().run_once() == NOTHING
    assert_index_agrees()


def test_everything_at_once(engine, running, monkeypatch):
    leave_lease_of_ended_row(engine, running)
    lose_lease(engine, running[1:])
    lose_entry(engine, running)
    change_limit(engine, running)
    heard = {}
    signals.index_repaired.connect(listener := lambda **event: heard.update({event["kind"]: event["count"]}))
    repairs = reconcile_everything()
    signals.index_repaired.disconnect(listener)
    assert heard == {"missing": 1, "leases_ended": 1, "leases_restored": 1, "limits": 1}
    assert repairs == NOTHING | heard
    assert_index_agrees()


def test_the_rolling_pass_reaches_every_row_in_pages(engine, override, no_statistics):
    """Rows that were queued long ago are outside the recent window."""
    override(module, PAGE=3)
    ids = put_many(10)
    Task.objects.update(queued_at="2026-01-01T00:00Z")
    reconciler = Reconciler()
    assert [reconciler.run_once()["missing"] for _ in range(5)] == [3, 3, 3, 1, 0]
    assert assert_index_agrees().waiting == set(ids)


@pytest.mark.parametrize(("arriving", "missing"), [(6, 0), (4, 2)])
def test_of_a_batch_on_its_way_only_what_never_arrives_is_missing(engine, arriving, missing):
    """Its transaction has committed, and its pushes arrive one after the other while the reconciler looks."""
    with index_away("push"):
        refs = snapshot.refs(put_many(6))
    arrivals = iter([refs[:4], refs[4:arriving], []])
    found = Reconciler(pause=lambda _: engine.index.push(next(arrivals))).run_once()
    assert found == NOTHING | {"missing": missing}
    assert_index_agrees()


@pytest.mark.parametrize(("arriving", "ended"), [(2, 0), (1, 1)])
def test_a_release_on_its_way_is_no_repair(engine, running, arriving, ended):
    """The ends have committed, and the index is told a moment later."""
    with index_away("release"):
        finish([done(task) for task in running])
    late = [(task.id, "default") for task in running[:arriving]]
    found = Reconciler(pause=lambda _: release(engine.index, late)).run_once()
    assert found == NOTHING | {"leases_ended": ended}
    assert_index_agrees()


def test_a_stream_of_batches_does_not_hold_up_the_reconciler(engine, override, no_statistics):
    """Each look finds other tasks that are on their way."""
    override(module, PAGE=1)
    waits = []

    def lose_one_and_push_the_last(seconds):
        waits.append(seconds)
        engine.index.push(snapshot.refs([*Task.objects.values_list("id", flat=True)]))
        with index_away("push"):
            put_many(1)

    with index_away("push"):
        put_many(1)
    assert Reconciler(pause=lose_one_and_push_the_last).run_once()["missing"] == 0
    assert len(waits) == 2, "once for the recent window, once for the full pass"


def test_the_recent_window_covers_the_newest_rows(engine, override, no_statistics):
    override(module, RECENT_ROWS=50, PAGE=50)  # PAGE of the full pass, which begins with the oldest rows
    for _ in range(6):
        put_many(50)
    with index_away("push"):
        put_many(20)
    assert Reconciler().run_once()["missing"] == 20


def test_a_step_that_compares_all_queued_rows_reads_the_recent_ones_once(engine, override, monkeypatch):
    monkeypatch.setattr(module.snapshot, "packed_recent", recent := Mock(wraps=module.snapshot.packed_recent))
    with index_away("push"):
        put_many(3)
    assert Reconciler().run_once()["missing"] == 3
    assert recent.call_count == 0
    override(module, PAGE=1)
    Reconciler().run_once()
    assert recent.call_count == 1


def test_the_recent_window_is_bounded_where_many_tasks_share_an_instant(engine):
    ids = put_many(7)
    [lane] = module.snapshot.packed_recent(30, 3).lanes
    assert _split(lane.ids, 16) == [task_id.bytes for task_id in ids[-3:]]
    Task.objects.update(queued_at=timezone.now() - timedelta(seconds=31))
    assert module.snapshot.packed_recent(30, 3).lanes == []


def test_reconcile_everything_goes_through_all_pages(engine, override):
    override(module, PAGE=3, LARGEST_PAGE=3)
    put_many(9)
    Task.objects.update(queued_at="2026-01-01T00:00Z")
    assert reconcile_everything()["missing"] == 9
    assert_index_agrees()


def test_the_leases_of_a_queue_without_tasks_are_looked_at(engine):
    """A rebuild restored the lease and its release was lost; no push has named the queue since."""
    put_many(1, queue="q")
    [task] = take(engine.worker())
    rebuild()
    with index_away("release"):
        finish([done(task)])
    assert Reconciler().run_once()["leases_ended"] == 1
    assert_index_agrees()


@pytest.mark.parametrize("reader", ["snapshot.packed_page", "snapshot.packed_recent", "snapshot.refs"])
def test_rows_read_before_they_were_claimed_revive_nothing(engine, override, monkeypatch, reader):
    """A push names a task that runs or has ended by now; the row refuses it later."""
    override(module, PAGE=1)  # else the full pass ends in this step, and compares the recent rows too
    ids = put_many(3)
    hand = engine.worker()
    place, name = reader.split(".")  # before the index is compared, and before it is repaired
    plain, taken = getattr(getattr(module, place), name), []

    def read_then_run(*args):
        found = plain(*args)
        if not taken:
            taken.extend(take(hand, 2))
            finish([done(taken[0])])
        return found

    monkeypatch.setattr(getattr(module, place), name, read_then_run)
    if name == "refs":  # asked only for what differs
        monkeypatch.setattr(type(engine.index), "misplaced", lambda *_: ids)
    Reconciler().run_once()
    monkeypatch.undo()
    assert take_ids(hand, 5) == [ids[2]]
    assert [row(task_id).attempt for task_id in ids] == [1, 1, 1]
    Reconciler().run_once()
    assert_index_agrees()


@pytest.mark.parametrize(("largest", "pages"), [(4, 1), (3, 2)])
def test_the_rolling_pass_takes_its_period(
    engine, settings, override, monkeypatch, no_statistics, largest: int, pages: int
):
    """12 rows in 3 turns: 4 rows per turn, no more than needed, in one page if that may be so large."""
    override(module, PAGE=3, LARGEST_PAGE=largest)
    monkeypatch.setattr(module.snapshot, "packed_page", read := Mock(wraps=module.snapshot.packed_page))
    settings.TASKQUEUE = settings.TASKQUEUE | {"SCHEDULER": {"RECONCILE_SECONDS": 5, "FULL_PASS_SECONDS": 15}}
    ids = put_many(12)
    Task.objects.update(queued_at=timezone.now() - timedelta(hours=1))
    reconciler = Reconciler(total=12)
    for turn in range(1, 4):
        assert reconciler.cursor is None or turn > 1
        reconciler.run_once()
        assert (reconciler.compared, read.call_count) == (4 * turn, pages * turn)
    reconciler.run_once()
    assert (reconciler.total, reconciler.cursor) == (12, None)
    assert len(ids) == 12


INSTANTS = st.integers(946_684_800_000_000, 4_290_000_000_000_000)  # µs: from the year 2000 to 2105


@given(st.lists(st.tuples(st.sampled_from(list(Band)), INSTANTS), min_size=1, max_size=20))
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_database_packs_the_places_that_the_index_holds(engine, made):
    """The same number to its last bit, in the same order as the ids, for any band and instant."""
    erase(Task.objects.all())
    ids = put_many(len(made))
    made = [(band, datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=at)) for band, at in made]
    for task_id, (band, at) in zip(ids, made, strict=True):
        Task.objects.filter(pk=task_id).update(priority=band, queued_at=at)
    page = module.snapshot.packed_page(None, 100)
    [lane] = page.lanes
    places = dict(zip(_split(lane.ids, 16), (place for (place,) in struct.iter_unpack(">d", lane.scores)), strict=True))
    wanted = {task_id.bytes: score(band, at) for task_id, (band, at) in zip(ids, made, strict=True)}
    assert places == wanted
    assert page.end is None


def _split(packed, size):
    return [packed[at : at + size] for at in range(0, len(packed), size)]


PROFILE = Profile.of([], ["a"], [])


@pytest.mark.parametrize(
    "end", [mark_dead, lambda worker_id: deregister(worker_id, PROFILE, tasks_done=0)], ids=["died", "left"]
)
def test_a_worker_whose_end_the_index_missed_is_retired(engine, end):
    """Otherwise the index would keep its heads and send it wake-up calls for ever."""
    put_many(2)
    gone, stays = uuid.uuid4(), uuid.uuid4()
    for worker_id in (gone, stays):
        enlist(Hand(worker_id, PROFILE))
    with index_away("unregister"):
        end(gone)
    assert Reconciler().run_once() == NOTHING | {"workers_retired": 1}
    assert engine.index.registered() == [(PROFILE.id, stays)]
    with index_away("unregister"):
        end(stays)
    Reconciler().run_once()
    assert index_state.check(engine.index).profiles == set()
    assert Reconciler().run_once() == NOTHING
