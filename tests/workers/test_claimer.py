"""How many tasks a worker claims: for its free slots, and ahead of them."""

import time
from types import SimpleNamespace

import pytest

from queue_app.core.states import Status
from queue_app.index import MAX_CLAIM, get_index
from queue_app.models import Queue, Worker
from queue_app.services.control.queues import set_queue_limits
from queue_app.workers import claimer, claimer as claimer_module
from queue_app.workers.claimer import FORGET_SECONDS, Prefetch
from tests.support.engine import assert_index_agrees, index_away, put, put_many, row, status
from tests.workers.stage import QUICK, SLOW, statuses, teach


def test_it_stops_claiming_after_it_found_nothing(hire, monkeypatch):
    worker = hire()
    worker.run_once()
    calls = []
    monkeypatch.setattr(worker.transport, "claim", lambda *_, **__: calls.append(1) or [])
    worker.run_once()
    assert calls == []
    worker.turn()
    worker.run_once()
    assert calls == [1]


def test_a_call_during_the_claim_is_not_lost(hire, monkeypatch):
    worker = hire()
    plain = worker.transport.claim

    def called_meanwhile(*args, **options):
        found = plain(*args, **options)
        worker.wake()
        return found

    monkeypatch.setattr(worker.transport, "claim", called_meanwhile)
    worker.run_once()
    monkeypatch.undo()
    task_id = put(QUICK)
    worker.run_once()
    assert status(task_id) == Status.EXECUTING


def test_more_slots_than_one_claim_may_fill(hire, monkeypatch):
    monkeypatch.setattr(claimer_module, "MAX_CLAIM", 3)
    put_many(5, QUICK)
    worker = hire(concurrency=5)
    worker.run_once()
    assert worker.pause == 0
    worker.run_once()
    assert len(worker.pool.begun) == 5


def test_it_claims_quick_tasks_ahead(hire):
    put_many(50, QUICK)
    worker = hire(concurrency=1)
    teach(worker, QUICK)
    worker.run_once()
    assert (len(worker.pool.begun), worker.pool.unstarted) == (1, 20)


def test_tasks_of_unknown_types_that_were_claimed_ahead_go_back(hire, history):
    quick = put_many(3, QUICK)
    slow = put_many(5, SLOW)
    worker = hire(concurrency=1)
    teach(worker, QUICK)
    worker.run_once()
    assert statuses(*quick, *slow) == ["executing"] * 3 + ["queued"] * 5
    assert all(row(task_id).failures == 0 for task_id in slow)
    assert worker.claimer.prefetch.allowance() == 0  # until it knows better
    assert len(worker.in_flight) == 3
    assert_index_agrees()
    assert worker.until_empty() == 8
    assert history.states(slow[-1]) == "queued executing queued executing completed"


def test_a_task_of_an_unknown_type_may_take_a_free_slot(hire):
    slow = put_many(2, SLOW)
    put_many(3, QUICK)
    worker = hire(concurrency=2)
    teach(worker, QUICK)
    worker.run_once()
    assert statuses(*slow) == ["executing"] * 2


def test_it_gives_back_tasks_that_wait_behind_an_unexpectedly_long_task(hire):
    ids = put_many(3, QUICK)
    worker = hire(concurrency=1)
    teach(worker, QUICK)
    worker.run_once()
    worker.run_once()
    assert statuses(*ids) == ["executing"] * 3
    worker.stuck(1)
    worker.run_once()
    assert statuses(*ids) == ["executing", "queued", "queued"]
    assert len(worker.in_flight) == 1
    worker.turn()
    assert statuses(*ids) == ["executing", "queued", "queued"], "it knows now how long the type takes"
    assert_index_agrees()


def test_claiming_more_ahead_does_not_count_as_progress(hire):
    """Otherwise new tasks would pile up behind a stuck slot."""
    ids = put_many(2, QUICK)
    worker = hire(concurrency=1)
    teach(worker, QUICK)
    worker.run_once()
    worker.stuck(0.2)
    ids.append(put(QUICK))
    worker.turn()
    assert statuses(*ids) == ["executing"] * 3
    worker.stuck(0.1)
    worker.run_once()
    assert statuses(*ids) == ["executing", "queued", "queued"]


def test_a_call_to_a_worker_that_takes_nothing_is_passed_on(hire):
    """It was registered as idle, because its claim asked for more slots than it got."""
    busy = hire(concurrency=1)
    teach(busy, QUICK)
    put(SLOW)
    busy.run_once()
    teach(busy, SLOW, 5)
    idle = hire(concurrency=1)
    idle.run_once()
    assert get_index().wait_for_call(idle.id, 0.01) is None
    task_id = put(SLOW)
    assert get_index().wait_for_call(busy.id, 5)
    busy.called()
    busy.run_once()
    assert get_index().wait_for_call(idle.id, 5)
    idle.called()
    idle.run_once()
    assert row(task_id).worker_id == idle.id


def rate(seconds: float) -> None:
    """Allow one start every ``seconds`` seconds."""
    queue, _ = Queue.objects.get_or_create(name="default")
    queue.rate_count, queue.rate_seconds = 1, seconds
    queue.save()


def work(worker, is_over) -> None:
    """Turn the loop without wake-up calls until ``is_over``; sleep as the loop would."""
    deadline = time.monotonic() + 60
    while not is_over():
        worker.run_once()
        worker.pool.finish()
        assert time.monotonic() < deadline
        time.sleep(min(worker.pause or 0.001, 0.05))


def test_it_claims_again_when_a_limit_allows_a_start(hire):
    """No wake-up call is needed: the claim that found nothing returned the time."""
    rate(0.1)
    ids = put_many(3, QUICK)
    worker = hire()
    worker.run_once()
    work(worker, lambda: statuses(*ids) == ["completed"] * 3)


def test_the_loop_sleeps_until_a_limit_allows_a_start(hire):
    rate(60)
    put_many(2, QUICK)
    worker = hire()
    worker.run_once()
    assert 0 < worker.pause <= 60


def test_a_burst_waits_if_a_limit_soon_allows_a_start(hire):
    rate(0.1)
    ids = put_many(3, QUICK)
    worker = hire(burst=True)
    work(worker, lambda: worker.is_finished)
    assert statuses(*ids) == ["completed"] * 3


def test_a_burst_does_not_wait_for_a_later_start(hire, monkeypatch):
    """It also does not wait for ever while tasks of other workers may start again and again."""
    rate(3600)
    task_id = put(QUICK)
    worker = hire(burst=True)
    worker.run_once()
    assert worker.is_finished
    rate(5)
    worker.turn()
    assert not worker.is_finished
    monkeypatch.setattr(claimer_module, "BURST_SECONDS", 1)
    assert worker.is_finished
    assert status(task_id) == Status.QUEUED


def test_one_worker_drains_for_a_heavy_task_and_another_starts_what_is_behind_it(hire):
    drains, other = hire(concurrency=8, look_ahead_ms=0), hire(concurrency=8, look_ahead_ms=0)
    for worker in (drains, other):
        put_many(7, SLOW)
        worker.run_once()
    heavy = put(SLOW, weight=8)
    drains.turn()
    light = put_many(3, SLOW)
    for worker in (other, drains):
        worker.turn()
    assert [status(task_id) for task_id in light] == [Status.EXECUTING, Status.QUEUED, Status.QUEUED]
    drains.end()
    assert status(heavy) == Status.EXECUTING
    assert row(heavy).worker_id == drains.id


def test_a_worker_near_its_last_task_does_not_drain(hire):
    """It never claims for all its slots again, so it would hold the heavy task back for ever."""
    last, other = hire(concurrency=8, max_tasks=5, look_ahead_ms=0), hire(concurrency=8, look_ahead_ms=0)
    heavy, light = put(SLOW, weight=8), put(SLOW)
    last.run_once()
    assert status(light) == Status.EXECUTING
    other.run_once()
    assert status(heavy) == Status.EXECUTING


def reported(worker) -> int:
    """Return the free slots of the worker's last heartbeat."""
    assert worker.beat()
    return Worker.objects.get(pk=worker.id).free_slots


def test_a_heartbeat_says_how_many_slots_the_last_claim_left_free(hire, monkeypatch):
    worker = hire(concurrency=3)
    assert reported(worker) == 0, "it has not claimed yet"
    put(SLOW)
    worker.run_once()
    assert reported(worker) == 2
    put_many(2, SLOW)
    worker.turn()
    assert reported(worker) == 0, "all slots are taken"
    worker.pool.finish(1)
    assert reported(worker) == 0, "it has not asked for another task yet"
    worker.run_once()
    assert reported(worker) == 1
    worker.drain()
    assert reported(worker) == 0


def test_slots_that_a_claim_in_vain_left_free_are_reported_too(hire, monkeypatch):
    """The index may be what is broken, so an error is no reason to report nothing."""
    worker = hire(concurrency=2)
    with index_away("claim"):
        worker.run_once()
    assert reported(worker) == 2


def test_a_worker_near_its_last_task_reports_only_slots_that_it_will_fill(hire):
    put(SLOW)
    worker = hire(concurrency=3, max_tasks=1)
    worker.run_once()
    worker.turn()
    assert reported(worker) == 0


def test_work_claimed_ahead_leaves_no_slot_free(hire):
    put_many(3, QUICK)
    worker = hire(concurrency=1)
    teach(worker, QUICK)
    worker.run_once()
    assert len(worker.in_flight) == 3
    assert reported(worker) == 0, "it has one slot, and that is taken"


def test_a_capped_worker_ends_tasks_and_claims_the_next_in_one_transaction(hire, monkeypatch):
    set_queue_limits("default", max_concurrent=2)
    ids = put_many(5, QUICK)
    worker = hire(concurrency=4, look_ahead_ms=0)
    worker.run_once()
    called = []
    for name in ("finish", "claim", "turn_over"):
        plain = getattr(worker.transport, name)
        monkeypatch.setattr(
            worker.transport, name, lambda *a, _p=plain, _n=name, **k: called.append(_n) or _p(*a, **k), raising=False
        )
    worker.end()
    assert statuses(*ids) == ["completed"] * 2 + ["executing"] * 2 + ["queued"]
    assert called == ["turn_over"]
    assert worker.until_empty() == 5
    assert_index_agrees()


def test_a_worker_without_a_limit_ends_many_and_claims_many(hire, monkeypatch):
    put_many(20, QUICK)
    worker = hire(concurrency=4, look_ahead_ms=0)
    monkeypatch.setattr(worker.transport, "turn_over", None, raising=False)
    worker.run_once()
    worker.end()
    assert len(worker.in_flight) == 4
    assert worker.until_empty() == 20


def test_a_capped_worker_reports_while_redis_is_away(hire):
    set_queue_limits("default", max_concurrent=1)
    ids = put_many(2, QUICK)
    worker = hire(concurrency=4, look_ahead_ms=0)
    worker.run_once()
    worker.pool.finish()
    with index_away("claim"):
        worker.run_once()
    assert statuses(*ids) == ["completed", "queued"]


@pytest.mark.parametrize("is_loading", [True, False])
def test_a_burst_waits_for_a_rebuild_however_long_it_loads(hire, monkeypatch, is_loading):
    """For a limit it waits only while starts follow each other soon."""
    worker = hire(burst=True)
    monkeypatch.setattr(worker.transport, "claim", lambda *_, on_wait, **__: on_wait(0.1, is_loading) or [])
    worker.claimer._last_granted -= 1000
    worker.run_once()
    assert worker.is_finished is not is_loading


# -- how many it claims ahead ----------------------------------------------------------------------------------------


@pytest.fixture
def clock(monkeypatch) -> list[float]:
    """The monotonic time of the module under test."""
    now = [1000.0]
    monkeypatch.setattr(claimer, "time", SimpleNamespace(monotonic=lambda: now[0]))
    return now


def test_it_claims_nothing_ahead_without_known_run_times():
    assert Prefetch(20, 5).allowance() == 0


@pytest.mark.parametrize(
    ("slots", "seconds", "allowance"),
    [(1, 0.001, 20), (5, 0.001, 100), (5, 0.02, 5), (1, 0.02, 1), (1, 0.021, 0), (5, 10, 0), (50, 0, MAX_CLAIM)],
)
def test_as_much_work_as_takes_the_budget(slots, seconds, allowance):
    ahead = Prefetch(20, slots)
    ahead.observe("a", seconds)
    assert ahead.allowance() == allowance


def test_the_slowest_type_counts():
    ahead = Prefetch(20, 5)
    ahead.observe("quick", 0.001)
    ahead.observe("slow", 3)
    assert ahead.allowance() == 0


def test_a_budget_of_nothing():
    ahead = Prefetch(0, 5)
    ahead.observe("a", 0.001)
    assert ahead.allowance() == 0


def test_a_run_that_is_much_slower_counts_in_full():
    ahead = Prefetch(20, 1)
    ahead.observe("a", 0.001)
    ahead.observe("a", 0.5)
    assert ahead.allowance() == 0


def test_a_slow_run_is_forgiven_gradually():
    ahead = Prefetch(20, 1)
    ahead.observe("a", 0.1)
    allowances = []
    for _ in range(60):
        ahead.observe("a", 0.000_1)
        allowances.append(ahead.allowance())
    assert allowances == sorted(allowances)
    assert allowances[0] == 0
    assert allowances[-1] > 20


def test_a_type_that_has_not_run_for_long_is_forgotten(clock):
    ahead = Prefetch(20, 1)
    ahead.observe("slow", 5)
    clock[0] += FORGET_SECONDS - 1
    ahead.observe("quick", 0.001)
    assert ahead.allowance() == 0
    clock[0] += 2
    assert ahead.allowance() == 20
    clock[0] += FORGET_SECONDS
    assert ahead.allowance() == 0


def test_types_met_without_having_run_here_stop_it(clock):
    ahead = Prefetch(20, 1)
    ahead.observe("quick", 0.001)
    ahead.distrust("new")
    assert ahead.allowance() == 0
    ahead.observe("new", 0.002)
    assert ahead.allowance() == 10
    ahead.distrust("new")
    clock[0] += FORGET_SECONDS - 1
    ahead.observe("quick", 0.001)
    clock[0] += 2
    assert ahead.allowance() == 20


@pytest.mark.parametrize(("seconds", "quick"), [(0.001, True), (0.02, True), (0.03, False)])
def test_quick(seconds, quick):
    ahead = Prefetch(20, 1)
    assert not ahead.is_quick("a")
    ahead.observe("a", seconds)
    assert ahead.is_quick("a") is quick


def test_max_wait_is_a_multiple_of_the_budget():
    assert Prefetch(20, 1).max_wait == 0.25
    assert Prefetch(100, 1).max_wait == 1.0
