"""The worker's loop, step by step: its slots move when the test says so."""

import sys
import types
import uuid
from datetime import UTC, datetime
from types import SimpleNamespace

import pytest
from django.db import DataError, OperationalError

from queue_app import registry, signals
from queue_app.core.priorities import Band
from queue_app.core.states import Status
from queue_app.index import get_index
from queue_app.models import Queue, Task, TaskAttempt, TaskResult
from queue_app.models import Worker as WorkerRow
from queue_app.registry import type_of
from queue_app.services import claim as claim_service
from queue_app.services import workers as service
from queue_app.services.cancel import cancel
from queue_app.services.reap import bury, reap
from queue_app.services.rebuild import rebuild
from tests.support.engine import assert_index_agrees, flush, index_away, put, put_many, row, status
from tests.workers import chores
from workers import hands as hands_module
from workers import worker as worker_module
from workers.lifecycle import Exit
from workers.options import WorkerOptions
from workers.worker import Worker

QUICK, SLOW, ECHO, RAISES = (type_of(t) for t in (chores.quick, chores.slow, chores.echo, chores.raises))


def statuses(*ids: uuid.UUID) -> list[str]:
    """Return the states of tasks."""
    return [status(task_id).value for task_id in ids]


def teach(worker, kind: str, seconds: float = 0.001) -> None:
    """Let the worker know how long a type takes."""
    worker._look_ahead.observe(kind, seconds)


# -- the start ------------------------------------------------------------------------------------------


def test_postgresql_away_at_the_start(engine, monkeypatch, warnings_logged):
    monkeypatch.setattr(service, "register", away)
    assert Worker(WorkerOptions(name="early")).run() is Exit.UNREACHABLE
    assert warnings_logged() == ["worker early cannot register: gone"]


def test_a_hosts_clock_that_is_behind_makes_nobody_dead(hire, monkeypatch):
    monkeypatch.setattr("django.utils.timezone.now", lambda: datetime(2020, 1, 1, tzinfo=UTC))
    worker = hire()
    monkeypatch.undo()
    reap()
    assert WorkerRow.objects.get(pk=worker.id).status == "active"


# -- claim and report -------------------------------------------------------------------------------


def test_it_claims_for_free_slots_and_reports(hire, history):
    ids = put_many(3, ECHO, args=[7])
    worker = hire(concurrency=2)
    worker.run_once()
    assert statuses(*ids) == ["executing", "executing", "queued"]
    worker.pool.finish()
    worker.run_once()
    assert statuses(*ids) == ["completed", "completed", "executing"]
    worker.pool.finish()
    worker.run_once()
    assert statuses(*ids) == ["completed"] * 3
    assert [TaskResult.objects.get(task_id=task_id).value for task_id in ids] == [7, 7, 7]
    assert worker._hands.done == 3
    assert history.most_executing() == 2
    assert_index_agrees()


def test_urgent_ones_come_first(hire, history):
    low, first, second = put(QUICK, priority=Band.LOW), put(QUICK), put(SLOW)
    urgent = put(SLOW, priority=Band.CRITICAL)
    hire(concurrency=1, look_ahead_ms=0).until_empty()
    assert history.starts() == [urgent, first, second, low]


def test_outcomes_are_written_in_one_batch(hire, monkeypatch):
    put_many(30, QUICK)
    worker = hire(concurrency=30)
    batches = []
    plain = hands_module.finish
    monkeypatch.setattr(hands_module, "finish", lambda batch: batches.append(len(batch)) or plain(batch))
    worker.run_once()
    worker.pool.finish()
    worker.run_once()
    assert batches == [30]


def test_a_failure_is_recorded(hire):
    task_id = put(RAISES, args=["value"], max_retries=0)
    hire().until_empty()
    assert status(task_id) == Status.DEAD_LETTER
    assert TaskAttempt.objects.get(task_id=task_id).message == "no good"


def test_it_asks_no_more_once_it_found_nothing(hire, monkeypatch):
    worker = hire()
    worker.run_once()
    calls = []
    monkeypatch.setattr(worker_module, "claim", lambda *_: calls.append(1) or [])
    worker.run_once()
    assert calls == []
    worker.wake()
    worker.run_once()
    worker.run_once()
    assert calls == [1]


def test_a_call_during_the_claim_is_not_lost(hire, monkeypatch):
    worker = hire()
    plain = worker_module.claim

    def called_meanwhile(*args):
        found = plain(*args)
        worker.wake()
        return found

    monkeypatch.setattr(worker_module, "claim", called_meanwhile)
    worker.run_once()
    monkeypatch.undo()
    task_id = put(QUICK)
    worker.run_once()
    assert status(task_id) == Status.EXECUTING


def test_more_slots_than_one_claim_may_fill(hire, monkeypatch):
    monkeypatch.setattr(worker_module, "MAX_CLAIM", 3)
    put_many(5, QUICK)
    worker = hire(concurrency=5)
    worker.run_once()
    assert worker._patience() == 0
    worker.run_once()
    assert len(worker.pool.begun) == 5


# -- looking ahead -------------------------------------------------------------------------------------


def test_it_claims_ahead_what_is_quick(hire):
    put_many(50, QUICK)
    worker = hire(concurrency=1)
    teach(worker, QUICK)
    worker.run_once()
    assert (len(worker.pool.begun), worker.pool.unstarted) == (1, 20)


def test_what_it_claimed_ahead_and_does_not_know_goes_back(hire, history):
    quick = put_many(3, QUICK)
    slow = put_many(5, SLOW)
    worker = hire(concurrency=1)
    teach(worker, QUICK)
    worker.run_once()
    assert statuses(*quick, *slow) == ["executing"] * 3 + ["queued"] * 5
    assert all(row(task_id).failures == 0 for task_id in slow)
    assert worker._look_ahead.allowance() == 0  # until it knows better
    assert len(worker._hands) == 3
    assert_index_agrees()
    assert worker.until_empty() == 8
    assert history.states(slow[-1]) == "queued executing queued executing completed"


def test_an_unknown_type_may_have_a_free_slot(hire):
    slow = put_many(2, SLOW)
    put_many(3, QUICK)
    worker = hire(concurrency=2)
    teach(worker, QUICK)
    worker.run_once()
    assert statuses(*slow) == ["executing"] * 2


def test_it_gives_back_what_waits_behind_something_unexpectedly_long(hire):
    ids = put_many(3, QUICK)
    worker = hire(concurrency=1)
    teach(worker, QUICK)
    worker.run_once()
    worker.run_once()
    assert statuses(*ids) == ["executing"] * 3
    worker.stuck(1)
    worker.run_once()
    assert statuses(*ids) == ["executing", "queued", "queued"]
    assert len(worker._hands) == 1
    worker.wake()
    worker.run_once()
    assert statuses(*ids) == ["executing", "queued", "queued"], "it knows now how long the type takes"
    assert_index_agrees()


def test_claiming_more_ahead_is_no_progress(hire):
    """Else a trickle of new tasks would pile up behind a slot that is stuck."""
    ids = put_many(2, QUICK)
    worker = hire(concurrency=1)
    teach(worker, QUICK)
    worker.run_once()
    worker.stuck(0.2)
    ids.append(put(QUICK))
    worker.wake()
    worker.run_once()
    assert statuses(*ids) == ["executing"] * 3
    worker.stuck(0.1)
    worker.run_once()
    assert statuses(*ids) == ["executing", "queued", "queued"]


def test_a_call_to_a_worker_that_takes_nothing_is_passed_on(hire):
    """It stood among the idle ones because it had asked for more than its slots can hold."""
    busy = hire(concurrency=1)
    teach(busy, QUICK)
    put(SLOW)
    busy.run_once()
    teach(busy, SLOW, 5)
    idle = hire(concurrency=1)
    idle.run_once()
    assert service.wait_for_wake(idle.id, 0.01) is False
    task_id = put(SLOW)
    assert service.wait_for_wake(busy.id, 5) is True
    busy._wake(called=True)
    busy.run_once()
    assert service.wait_for_wake(idle.id, 5) is True
    idle._wake(called=True)
    idle.run_once()
    assert row(task_id).worker_id == idle.id


# -- servers that fail ---------------------------------------------------------------------------------


def away(*_args, **_kwargs):
    raise OperationalError("gone")


def test_outcomes_stay_at_hand_until_they_are_written(hire, monkeypatch, warnings_logged):
    [task_id] = put_many(1, ECHO, args=[5])
    worker = hire()
    worker.run_once()
    worker.pool.finish()
    monkeypatch.setattr(hands_module, "finish", away)
    for _ in range(3):
        worker.run_once()
        worker.later(1)
    assert status(task_id) == Status.EXECUTING
    assert warnings_logged() == ["gone; trying again"]
    monkeypatch.undo()
    worker.run_once()
    assert status(task_id) == Status.COMPLETED
    assert TaskResult.objects.get(task_id=task_id).value == 5
    assert len(worker._hands) == 0


def test_it_waits_a_moment_before_it_tries_again(hire, monkeypatch):
    worker = hire()
    monkeypatch.setattr(worker_module, "claim", away)
    worker.run_once()
    assert 0 < worker._patience() <= worker_module.RETRY_SECONDS
    monkeypatch.undo()
    task_id = put(QUICK)
    worker.run_once()
    assert status(task_id) == Status.QUEUED
    worker.later(1)
    worker.run_once()
    assert status(task_id) == Status.EXECUTING


def test_one_outcome_that_the_rows_refuse_does_not_stop_the_others(hire, monkeypatch):
    ids = put_many(5, ECHO, args=["x"], max_retries=0)
    worker = hire(concurrency=5)
    worker.run_once()
    worker.pool.finish()
    plain = hands_module.finish

    def refusing(batch):
        if any(o.task.id == ids[2] and o.failure is None for o in batch):
            raise DataError("unsupported Unicode escape sequence")
        return plain(batch)

    monkeypatch.setattr(hands_module, "finish", refusing)
    worker.run_once()
    assert statuses(*ids) == ["completed", "completed", "dead_letter", "completed", "completed"]
    assert "unsupported Unicode" in TaskAttempt.objects.get(task_id=ids[2]).message
    assert len(worker._hands) == 0


def test_an_error_after_the_commit_does_no_harm(hire, warnings_logged):
    [task_id] = put_many(1, QUICK)

    def broken(**_):
        raise RuntimeError("listener")

    worker = hire()
    worker.run_once()
    worker.pool.finish()
    signals.attempt_finished.connect(broken)
    try:
        worker.run_once()
        worker.later(1)
    finally:
        signals.attempt_finished.disconnect(broken)
    worker.run_once()
    assert status(task_id) == Status.COMPLETED
    assert len(worker._hands) == 0
    other = put(QUICK)
    worker.until_empty()
    assert status(other) == Status.COMPLETED


def test_a_failed_give_back_is_repeated(hire, monkeypatch):
    put_many(2, QUICK)
    slow = put_many(3, SLOW)
    worker = hire(concurrency=1)
    teach(worker, QUICK)
    monkeypatch.setattr(hands_module, "give_back", away)
    worker.run_once()
    assert statuses(*slow) == ["executing"] * 3
    monkeypatch.undo()
    worker.later(1)
    worker.run_once()
    assert statuses(*slow) == ["queued"] * 3
    assert len(worker._hands) == 2
    assert worker.until_empty() == 5


def test_a_give_back_that_the_index_did_not_hear_of(hire):
    """The rows have it; the reconciler does the rest."""
    put_many(2, QUICK)
    slow = put_many(3, SLOW)
    worker = hire(concurrency=1)
    teach(worker, QUICK)
    with index_away("release"):
        worker.run_once()
    assert statuses(*slow) == ["queued"] * 3
    assert len(worker._hands) == 2


def test_a_claim_whose_answer_was_lost_is_given_back(hire, monkeypatch, history):
    ids = put_many(4, QUICK)
    worker = hire(concurrency=2)
    plain = claim_service.claim_rows.claim

    def lost(*args):
        plain(*args)
        raise OperationalError("the connection broke")

    monkeypatch.setattr(claim_service.claim_rows, "claim", lost)
    worker.run_once()
    assert statuses(*ids[:2]) == ["executing"] * 2
    monkeypatch.undo()
    worker.later(1)
    worker.run_once()
    assert len(worker._hands) == 2
    assert worker.until_empty() == 4
    assert history.states(ids[0]) == "queued executing queued executing completed"
    assert_index_agrees()


def test_postgresql_away_costs_the_index_one_proposal(hire, monkeypatch):
    """A proposal holds its leases for a while: a worker must not take one with every try."""
    put_many(20, QUICK)
    worker = hire(concurrency=2)
    monkeypatch.setattr(claim_service.claim_rows, "claim", away)
    monkeypatch.setattr(hands_module, "give_back_strays", away)
    for _ in range(5):
        worker.run_once()
        worker.later(1)
    assert get_index().depth("default").active == 2


def test_the_index_away(hire, warnings_logged):
    task_id = put(QUICK)
    worker = hire()
    with index_away():
        worker.run_once()
    assert "gone; trying again" in warnings_logged()[0]
    assert status(task_id) == Status.QUEUED
    worker.later(1)
    worker.run_once()
    assert status(task_id) == Status.EXECUTING


def test_results_are_written_while_the_index_is_away(hire):
    ids = put_many(2, QUICK)
    worker = hire()
    worker.run_once()
    worker.pool.finish()
    with index_away():
        worker.run_once()
    assert statuses(*ids) == ["completed"] * 2


def test_an_index_that_is_gone_is_rebuilt(hire, index):
    task_id = put(QUICK)
    worker = hire()
    index._client.delete(*index._client.keys(index.keys.everything))
    worker.run_once()  # not ready: rebuilds
    worker.run_once()  # unknown profile: registers again
    worker.run_once()
    assert status(task_id) == Status.EXECUTING
    assert_index_agrees()


def test_an_unknown_profile_registers_again(hire, index):
    task_id = put(QUICK)
    worker = hire()
    index._client.delete(index.keys.profiles)
    worker.run_once()
    worker.run_once()
    assert status(task_id) == Status.EXECUTING


# -- the end ---------------------------------------------------------------------------------------


def test_a_drain_claims_nothing_and_gives_back_what_has_not_started(hire):
    ids = put_many(6, QUICK)
    worker = hire(concurrency=1)
    teach(worker, QUICK, 0.005)
    worker.run_once()
    assert statuses(*ids) == ["executing"] * 5 + ["queued"]
    worker.stop()
    worker.run_once()
    assert statuses(*ids) == ["executing"] + ["queued"] * 5
    assert not worker._finished()
    worker.pool.finish()
    worker.run_once()
    assert worker._finished()
    assert statuses(*ids) == ["completed"] + ["queued"] * 5
    assert_index_agrees()


def test_a_draining_worker_passes_calls_on(hire):
    leaving, idle = hire(concurrency=1), hire(concurrency=1)
    put(QUICK)
    leaving._hungry = False
    leaving.stop()
    leaving._wake(called=True)
    idle.run_once()
    idle.pool.finish()
    idle.run_once()
    put(QUICK)
    service.wait_for_wake(idle.id, 0.01)  # lose it
    get_index()._client.zadd(f"{get_index().keys.prefix}:idle:{idle.profile.id}", {str(idle.id): 1})
    leaving.run_once()
    assert service.wait_for_wake(idle.id, 5) is True


def test_the_loop_sleeps_no_longer_than_the_drain_may_take(hire):
    worker = hire(grace_seconds=3)
    put(QUICK)
    worker.run_once()
    assert worker._patience() > 3, "until the task's own timeout"
    worker.stop()
    worker.run_once()
    assert 0 < worker._patience() <= 3


def test_the_grace_expires(hire):
    worker = hire(grace_seconds=0)
    put(QUICK)
    worker.run_once()
    worker.stop()
    worker.run_once()
    assert worker._finished()


def test_the_second_signal_does_not_wait(hire):
    worker = hire()
    put(QUICK)
    worker.run_once()
    worker.stop()
    worker.run_once()
    assert not worker._finished()
    worker.stop()
    assert worker._finished()


def test_a_supervised_worker_is_not_hurried_by_a_second_drain(hire):
    worker = hire()
    put(QUICK)
    worker.run_once()
    worker.drain()
    worker.drain()
    assert not worker._finished()
    worker.hurry()
    assert worker._finished()


def leave(worker) -> Exit:
    """Let a worker leave whose helpers were never started."""
    worker._heartbeat = worker._waker = types.SimpleNamespace(stop=lambda: None)
    return worker._leave()


def test_leaving_reports_what_ended_and_gives_back_what_runs(hire):
    ids = put_many(4, QUICK)
    worker = hire(concurrency=2)
    teach(worker, QUICK, 0.02)
    worker.run_once()
    worker.pool.finish(1)
    assert leave(worker) is Exit.GAVE_BACK
    assert statuses(*ids) == ["completed"] + ["queued"] * 3
    assert [row(task_id).attempt for task_id in ids] == [1, 1, 1, 1]
    assert [row(task_id).failures for task_id in ids] == [0] * 4
    assert WorkerRow.objects.get(pk=worker.id).status == "stopped"
    assert worker.pool.stopped
    assert_index_agrees()


def test_leaving_with_nothing_in_hand(hire):
    worker = hire()
    assert leave(worker) is Exit.OK
    assert WorkerRow.objects.get(pk=worker.id).status == "stopped"
    assert get_index()._client.smembers(get_index().keys.profiles) == set()


def test_an_attempt_that_was_given_back_is_refused_later(hire, warnings_logged):
    put(ECHO, args=[1])
    worker, other = hire(), hire()
    worker.run_once()
    [held] = worker.pool.begun
    leave(worker)
    other.run_once()
    worker._hands.note(worker.pool._executor.run(held))
    worker._hands.report()
    assert status(held.task.id) == Status.EXECUTING
    assert "came too late and was refused" in warnings_logged()[-1]
    other.pool.finish()
    other.run_once()
    assert row(held.task.id).worker_id == other.id
    assert row(held.task.id).attempt == 2


def test_each_step_of_leaving_is_for_itself(hire, monkeypatch, warnings_logged):
    ids = put_many(2, QUICK)
    worker = hire(concurrency=2)
    worker.run_once()
    worker.pool.finish(1)
    monkeypatch.setattr(hands_module, "finish", away)
    assert leave(worker) is Exit.CRASHED
    assert statuses(*ids) == ["executing", "queued"]
    assert WorkerRow.objects.get(pk=worker.id).status == "stopped"
    assert warnings_logged() == ["worker still cannot report: gone"]


def test_leaving_without_the_index(hire):
    ids = put_many(2, QUICK)
    worker = hire(concurrency=2)
    worker.run_once()
    with index_away():
        assert leave(worker) is Exit.GAVE_BACK
    assert statuses(*ids) == ["queued"] * 2
    assert WorkerRow.objects.get(pk=worker.id).status == "stopped"


def test_cancelled_while_it_waited_in_the_worker(hire):
    ids = put_many(2, QUICK)
    worker = hire(concurrency=1)
    teach(worker, QUICK)
    worker.run_once()
    cancel(ids[1])
    worker.stop()
    worker.run_once()
    assert statuses(*ids) == ["executing", "cancelled"]
    assert_index_agrees()


def test_declared_dead(hire, warnings_logged):
    ids = put_many(2, QUICK)
    worker, heir = hire(concurrency=2), hire(concurrency=2)
    worker.run_once()
    worker.pool.finish(1)
    bury(worker.id)
    assert not worker._heartbeat.run_once()
    heir.run_once()
    worker.run_once()
    assert worker._finished()
    assert leave(worker) is Exit.LOST
    assert statuses(*ids) == ["executing"] * 2
    assert {row(task_id).worker_id for task_id in ids} == {heir.id}
    assert any("refused" in line for line in warnings_logged())
    assert WorkerRow.objects.get(pk=worker.id).status == "dead"


# -- a bounded life -----------------------------------------------------------------------------------


def test_max_tasks_is_exact(hire):
    ids = put_many(10, QUICK)
    worker = hire(concurrency=3, max_tasks=4)
    teach(worker, QUICK)
    while not worker._finished():
        worker.wake()
        worker.run_once()
        worker.pool.finish()
    assert statuses(*ids) == ["completed"] * 4 + ["queued"] * 6


def test_what_was_given_back_does_not_count(hire):
    put_many(2, QUICK)
    slow = put_many(8, SLOW)
    worker = hire(concurrency=1, max_tasks=5)
    teach(worker, QUICK)
    worker.run_once()
    assert worker._hands.claimed == 2
    while not worker._finished():
        worker.run_once()
        worker.pool.finish()
    assert statuses(*slow) == ["completed"] * 3 + ["queued"] * 5


def test_a_burst_ends_when_nothing_is_found(hire):
    put_many(5, QUICK)
    worker = hire(concurrency=2, burst=True)
    steps = 0
    while not worker._finished():
        worker.run_once()
        worker.pool.finish()
        steps += 1
        assert steps < 20
    assert Task.objects.filter(status="completed").count() == 5


def test_a_burst_runs_what_is_due(hire):
    task_id = put(RAISES, args=["value"], retry_delay=0.001, max_retries=3)
    worker = hire(burst=True)
    for _ in range(500):
        worker.run_once()
        worker.pool.finish()
        if worker._finished() and status(task_id) == Status.DEAD_LETTER:
            break
        worker.wake()
    assert row(task_id).failures == 4


def test_a_burst_waits_for_the_index(hire, index):
    put_many(3, QUICK)
    worker = hire(burst=True)
    index._client.delete(*index._client.keys(index.keys.everything))
    worker.run_once()
    assert not worker._finished()
    while not worker._finished():
        worker.run_once()
        worker.pool.finish()
    assert Task.objects.filter(status="completed").count() == 3


def test_a_burst_goes_on_when_postgresql_is_away_at_its_end(hire, monkeypatch):
    worker = hire(burst=True)
    monkeypatch.setattr(worker_module, "make_due", away)
    worker.run_once()
    assert not worker._finished()
    monkeypatch.undo()
    worker.later(1)
    worker.run_once()
    assert worker._finished()


# -- new task types ------------------------------------------------------------------------------------


def new_module(monkeypatch, name: str, source: str) -> None:
    """Let ``import name`` run this source, once."""

    class Finder:
        @staticmethod
        def find_spec(wanted, path=None, target=None):
            if wanted != name:
                return None
            from importlib.machinery import ModuleSpec  # noqa: PLC0415

            return ModuleSpec(name, Finder)

        @staticmethod
        def create_module(spec):
            return None

        @staticmethod
        def exec_module(module):
            exec(source, module.__dict__)  # noqa: S102

    monkeypatch.setattr(sys, "meta_path", [Finder, *sys.meta_path])


def test_it_learns_a_type_of_an_installed_app(hire, monkeypatch):
    name = "taskqueue_project.demo.brand_new"
    kind = f"{name}.greet"
    new_module(monkeypatch, name, "from django.tasks import task\n@task\ndef greet():\n    return 'hi'\n")
    task_id = put(kind)
    worker = hire()
    before = worker.profile
    worker.run_once()
    assert status(task_id) == Status.QUEUED
    assert worker._beat()
    try:
        worker.run_once()
        assert status(task_id) == Status.EXECUTING
        assert WorkerRow.objects.get(pk=worker.id).profile == worker.profile.id != before.id
        worker.pool.finish()
        worker.run_once()
        assert TaskResult.objects.get(task_id=task_id).value == "hi"
        assert_index_agrees()
    finally:
        registry._tasks.pop(kind, None)
        sys.modules.pop(name, None)


def test_a_module_that_breaks_is_tried_once(hire, monkeypatch, warnings_logged):
    name = "taskqueue_project.demo.broken"
    new_module(monkeypatch, name, "1 / 0")
    put(f"{name}.greet")
    other = put(QUICK)
    worker = hire()
    for _ in range(3):
        assert worker._beat()
        worker.run_once()
    assert len(warnings_logged()) == 1
    assert f"the module of {name}.greet cannot be imported" in warnings_logged()[0]
    assert status(other) == Status.EXECUTING


@pytest.mark.parametrize("kind", ["os.system", "tests.other.thing", "nothing"])
def test_it_looks_nowhere_else(hire, kind, monkeypatch):
    looked = []
    monkeypatch.setattr(registry, "import_module", looked.append)
    put(kind)
    worker = hire()
    worker._beat()
    worker.run_once()
    assert looked == []


def test_the_index_away_while_it_learns(hire):
    put("tests.other.thing")
    worker = hire()
    worker._beat()
    with index_away("unserved_types"):
        worker.run_once()
    worker.later(1)
    task_id = put(QUICK)
    worker.run_once()
    assert status(task_id) == Status.EXECUTING


# -- queues and capabilities ---------------------------------------------------------------------------


def test_only_its_queues(hire):
    mine, others = put(QUICK, queue="a"), put(QUICK, queue="b")
    hire(queues=("a",)).until_empty()
    assert statuses(mine, others) == ["completed", "queued"]


def test_only_what_it_can(hire):
    plain, gpu = put(QUICK), put(QUICK, capabilities=("gpu",))
    hire().until_empty()
    assert statuses(plain, gpu) == ["completed", "queued"]
    hire(capabilities=("gpu", "big")).until_empty()
    assert statuses(plain, gpu) == ["completed", "completed"]


def test_a_pause_holds_from_the_next_claim_on(hire):
    ids = put_many(4, QUICK)
    worker = hire(concurrency=2)
    worker.run_once()
    queue = Queue.objects.get(pk="default")
    queue.paused, queue.paused_at = True, queue.created_at
    queue.save()
    worker.pool.finish()
    worker.run_once()
    assert statuses(*ids) == ["completed"] * 2 + ["queued"] * 2


def test_an_idle_worker_hears_of_a_new_index(hire):
    """After a FLUSHALL it is registered nowhere, so nobody else could call it."""
    worker = hire()
    worker.run_once()
    service.wait_for_wake(worker.id, 0.01)
    flush(SimpleNamespace(index=get_index()))
    task_id = put(QUICK)
    rebuild()
    assert service.wait_for_wake(worker.id, 5) is True
    worker._wake(called=True)
    worker.run_once()  # its profile is unknown: it registers again
    worker.run_once()
    assert [held.task.id for held in worker.pool.begun] == [task_id]
