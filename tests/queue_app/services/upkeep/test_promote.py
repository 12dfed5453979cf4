"""promote: aged tasks rise in the index, even if index and rows change meanwhile."""

import uuid
from datetime import UTC, datetime, timedelta

import pytest

from queue_app import signals
from queue_app.core.events import EventFilter, EventName
from queue_app.core.priorities import Band
from queue_app.exceptions import IndexUnavailable
from queue_app.metrics.exposition import REPAIRS
from queue_app.models import MaintenanceJob, PriorityPolicy, Task
from queue_app.services.lifecycle.actions import reprioritise
from queue_app.services.lifecycle.claim import give_back
from queue_app.services.notify import events
from queue_app.services.repair.rebuild import rebuild
from queue_app.services.repair.reconcile import Reconciler, reconcile_everything
from queue_app.services.upkeep import promote as module
from queue_app.services.upkeep.promote import promote
from queue_app.sql import snapshot
from tests.support.engine import assert_index_agrees, at_once, counted_calls, index_away, put, put_many, row, take
from tests.support.index_clock import stop_clock
from tests.support.index_state import band_of, client_of

CRITICAL, HIGH, NORMAL, LOW, BACKGROUND = Band
NOTHING = dict.fromkeys(set(REPAIRS) - {"unreadable", "forgotten_tasks"}, 0)


def age(seconds: float, *ids: uuid.UUID, now: datetime | None = None) -> None:
    """Move the time of queueing into the past, in rows and index."""
    thresholds = dict(PriorityPolicy.objects.values_list("priority", "promote_after_seconds"))
    PriorityPolicy.objects.update(promote_after_seconds=None)
    Task.objects.filter(pk__in=ids).update(queued_at=(now or datetime.now(UTC)) - timedelta(seconds=seconds))
    index = module.get_index()
    index.set_thresholds({})
    index.push(snapshot.refs(list(ids)))
    for priority, seconds_until in thresholds.items():
        PriorityPolicy.objects.filter(pk=priority).update(promote_after_seconds=seconds_until)
    index.set_thresholds(PriorityPolicy.thresholds())


def aged(seconds: float, priority: str = "low", now: datetime | None = None, **options) -> uuid.UUID:
    """Enqueue a task that has already waited this long; the sweeps that would have passed it start again."""
    task_id = put(priority=priority, **options)
    age(seconds, task_id, now=now)
    MaintenanceJob.objects.all().delete()
    return task_id


def promotions() -> dict[str, int]:
    """Return the steps that the index has counted."""
    return {name: count for name, count in module.get_index().stats().counts.items() if name.startswith("promoted:")}


def standing() -> dict[uuid.UUID, Band]:
    """Return the band that each task stands in; index and rows agree."""
    lanes = assert_index_agrees().lanes.values()
    return {task_id: band_of(place) for lane in lanes for task_id, place in lane.items()}


@pytest.fixture
def now(engine, monkeypatch) -> datetime:
    """Stop the clocks of the index and of the sweeps; return their time."""
    now = datetime.now(UTC)
    monkeypatch.setattr(module, "clock", lambda: now)
    stop_clock(engine.index, now, monkeypatch)
    return now


def test_each_rises_as_far_as_its_age_allows(engine, history, now):
    ages = {BACKGROUND: (599, 601, 1201, 2401), LOW: (599, 601, 1799, 1801), NORMAL: (1199, 1201), HIGH: (9999,)}
    ids = {(band, seconds): aged(seconds, band.label, now) for band, page in ages.items() for seconds in page}
    assert {band for band, _ in ids} == set(standing().values())
    promotion = promote()
    assert {key: standing()[task_id] for key, task_id in ids.items()} == {
        (BACKGROUND, 599): BACKGROUND,
        (BACKGROUND, 601): LOW,
        (BACKGROUND, 1201): NORMAL,
        (BACKGROUND, 2401): HIGH,
        (LOW, 599): LOW,
        (LOW, 601): NORMAL,
        (LOW, 1799): NORMAL,
        (LOW, 1801): HIGH,
        (NORMAL, 1199): NORMAL,
        (NORMAL, 1201): HIGH,
        (HIGH, 9999): HIGH,
    }
    assert promotion.steps == {(BACKGROUND, LOW): 3, (LOW, NORMAL): 5, (NORMAL, HIGH): 3}
    assert promotion.complete
    assert all(row(task_id).band is band for (band, _), task_id in ids.items()), "the rows keep their bands"
    assert all(history.states(task_id) == "queued" for task_id in ids.values())


def test_promotions_are_logged(engine, caplog, hear):
    aged(1900)
    heard = hear(signals.tasks_promoted, "steps", "complete")
    with caplog.at_level("INFO", "taskqueue"):
        promote()
        promote()
    assert heard == [({(LOW, NORMAL): 1, (NORMAL, HIGH): 1}, True)]
    assert [record.message for record in caplog.records] == ["promoted: 1 from normal to high, 1 from low to normal"]


def published() -> list[tuple[str, str, str, dict[str, str]]]:
    """Return (task, user, own band, from and to) of each promotion in the stream of events."""
    module.get_index().flush()
    only = EventFilter(names=[EventName.PROMOTED])
    found, _ = events.read(events.FROM_THE_BEGINNING, count=1000, only=only)
    return [(event.task_id, event.user, event.priority, event.details) for event in found]


def test_events_name_the_promoted_tasks_and_the_bands(engine):
    one, two = aged(700, user="ann"), aged(1900, "background")
    young = put(priority="low")
    promote()
    promote()
    assert sorted(published()) == sorted(
        [
            (str(one), "ann", "low", {"from": "low", "to": "normal"}),
            (str(two), "", "background", {"from": "background", "to": "normal"}),
        ]
    )
    assert young


def test_a_run_publishes_a_bounded_number_of_events_and_counts_all(engine, monkeypatch):
    monkeypatch.setattr(module, "MAX_EVENTS", 3)
    age(700, *put_many(5, priority=LOW))
    assert promote(batch=2).total == 5
    assert len(published()) == 3


def test_tasks_that_reached_the_age_since_the_last_run_are_found(engine):
    """The sweep continues where it stopped, and reads only the last moments twice."""
    early, late = aged(700), aged(550)
    promote()
    age(610, late)
    with counted_calls(engine.index) as calls:
        assert promote().steps == {(LOW, NORMAL): 1}
    assert calls.count("promote") == 1
    assert standing() == {early: NORMAL, late: NORMAL}


def test_the_budget_ends_a_run_and_the_next_goes_on(engine):
    ids = put_many(25, priority="low")
    age(700, *ids)
    runs = [promote(batch=10, budget=0) for _ in range(4)]
    assert [(run.total, run.complete) for run in runs] == [(10, False), (10, False), (5, True), (0, True)]
    assert set(standing().values()) == {NORMAL}


def test_the_oldest_rise_first(engine):
    young, old = aged(700), aged(900)
    promote(batch=1, budget=0)
    assert standing() == {young: LOW, old: NORMAL}


def test_twice_at_once(engine):
    ids = put_many(200, priority="background")
    age(2500, *ids)
    runs = at_once([lambda: promote(batch=20)] * 3)
    assert sum(run.total for run in runs) == 600, "each step is made and counted once"
    assert sum(promotions().values()) == 600
    assert set(standing().values()) == {HIGH}


def test_a_running_task_is_left_alone_and_returns_to_the_place_for_its_age(engine):
    task_id = aged(1900)
    [task] = take(engine.worker())
    assert promote().total == 0
    assert engine.check().waiting == set()
    give_back([task])
    assert standing() == {task_id: HIGH}
    assert promotions() == {}


def test_reconcile_between_two_runs_repairs_nothing(engine):
    """Before a promotion the base place is right, after it the effective one; the reconciler leaves both."""
    first = aged(700)
    reconciler = Reconciler()
    assert reconciler.run_once() == NOTHING
    assert standing() == {first: LOW}
    assert promote().total == 1
    second = aged(1900)
    assert promote().total == 2
    assert [reconciler.run_once() for _ in range(3)] == [NOTHING] * 3
    assert not reconciler.repaired
    assert standing() == {first: NORMAL, second: HIGH}
    assert sum(promotions().values()) == 3


def test_a_missing_task_is_repaired_at_its_effective_place(engine):
    task_id = aged(1900)
    promote()
    engine.index.remove(snapshot.refs([task_id]))
    assert reconcile_everything()["missing"] == 1
    assert standing() == {task_id: HIGH}


def test_a_rebuild_restores_promotion(engine):
    ids = {aged(700, band.label): band for band in (NORMAL, LOW, BACKGROUND)}
    promote()
    before = standing()
    assert sorted(before.values()) == [NORMAL, NORMAL, LOW]
    for flush in (False, True):
        if flush:
            client_of(engine.index).delete(*client_of(engine.index).scan_iter(match=engine.index.keys.everything))
        rebuild()
        assert standing() == before
        assert promote().total == 0
    assert {task_id: row(task_id).band for task_id in ids} == ids


def test_a_lost_index_is_left_to_the_rebuild(engine):
    aged(700)
    client_of(engine.index).delete(*client_of(engine.index).scan_iter(match=engine.index.keys.everything))
    assert promote().total == 0
    assert engine.check().waiting == set()


@pytest.mark.parametrize(("band", "expected"), [(CRITICAL, CRITICAL), (NORMAL, NORMAL), (BACKGROUND, LOW)])
def test_a_reprioritised_task_is_placed_by_its_new_band(engine, band, expected):
    task_id = aged(700)
    promote()
    reprioritise(task_id, band)
    assert standing() == {task_id: expected}
    assert promote().total == 0
    assert Reconciler().run_once() == NOTHING


def test_an_index_that_is_away_costs_one_run(engine):
    """Crash point: the rows show which tasks are aged, so the next run promotes them."""
    task_id = aged(700)
    with index_away("promote"), pytest.raises(IndexUnavailable):
        promote()
    assert standing() == {task_id: LOW}
    assert promote().total == 1


def test_a_run_that_dies_before_it_saves_its_progress_is_repeated(engine, monkeypatch):
    """Crash point: between the index and the saved progress."""
    aged(700)
    monkeypatch.setattr(module.jobs, "save_progress", lambda *_: None)
    assert promote().total == 1
    monkeypatch.undo()
    assert not MaintenanceJob.objects.exists()
    assert promote().total == 0


def test_a_run_that_dies_halfway_has_kept_what_it_did(engine, monkeypatch):
    ids = put_many(20, priority="low")
    age(700, *ids)
    plain, pages = engine.index.promote, []

    def dies(page):
        pages.append(page)
        if len(page) and len([p for p in pages if p]) > 1:
            raise IndexUnavailable("gone")
        return plain(page)

    monkeypatch.setattr(engine.index, "promote", dies)
    with pytest.raises(IndexUnavailable):
        promote(batch=10)
    monkeypatch.undo()
    assert sorted(standing().values()) == [NORMAL] * 10 + [LOW] * 10
    assert promote(batch=10).total == 10


def test_edited_thresholds_hold_from_the_next_run(engine):
    task_id = aged(100)
    policy = PriorityPolicy.objects.get(pk=LOW)
    policy.promote_after_seconds = 60
    policy.save()
    assert promote().total == 1
    assert standing() == {task_id: NORMAL}
    policy.promote_after_seconds = None
    policy.save()
    assert promote().total == 0
    assert reconcile_everything()["missing"] == 1, "what rose by the old threshold goes back"
    assert standing() == {task_id: LOW}


def test_an_edit_whose_notification_was_lost(engine):
    aged(100)
    PriorityPolicy.objects.filter(pk=LOW).update(promote_after_seconds=60)
    assert promote().total == 1
    assert Reconciler().run_once() == NOTHING


def test_nothing_to_do_costs_no_call_for_tasks(engine):
    put_many(5, priority="low")
    promote()
    with counted_calls(engine.index) as calls:
        promote()
    assert sorted(calls) == ["generation", "set_thresholds"]


def test_a_step_back_of_the_rows_clock_does_not_hide_tasks_from_the_sweeps(engine):
    """The sweeps have passed instants that come once more."""
    put(priority="low")
    promote()
    MaintenanceJob.objects.update(
        progress={
            name: [(datetime.fromisoformat(at) + timedelta(hours=1)).isoformat(), task_id]
            for name, (at, task_id) in MaintenanceJob.objects.get().progress.items()
        }
    )
    promote()
    known = MaintenanceJob.objects.get().progress
    assert known
    assert all(datetime.fromisoformat(at) < datetime.now(UTC) for at, _ in known.values())
