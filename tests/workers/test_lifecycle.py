"""A worker process from its start to its exit code, with real signals."""

import signal

import pytest

from queue_app.core.states import Status
from queue_app.models import Worker
from queue_app.registry import type_of
from queue_app.workers.lifecycle import HURRY, on_hangup, on_signals, signals_held
from tests.integration.app import tasks
from tests.integration.processes import lines
from tests.support.engine import assert_index_agrees, put, put_many, row, status
from tests.support.waiting import until

HOLD, NOTE = type_of(tasks.hold), type_of(tasks.note)


@pytest.fixture
def held(fleet, log, tmp_path):
    """A worker of one slot that holds a task until its gate opens, with others behind it: (process, gate, ids)."""
    gate = tmp_path / "gate"
    ids = [put(HOLD, args=[log, "a", str(gate)]), *put_many(3, NOTE, args=[log, "later"])]
    process = fleet.worker("--concurrency", "1", heartbeat=0.1)
    until(lambda: lines(log), "the task begins")
    return process, gate, ids


def drains() -> bool:
    """Return whether a worker is draining."""
    return Worker.objects.filter(status="draining").exists()


def test_signals_are_held_and_delivered():
    got, before = [], signal.getsignal(HURRY)
    with on_signals({signal.SIGTERM: lambda: got.append("term"), HURRY: lambda: got.append("hurry")}):
        with signals_held():
            signal.raise_signal(signal.SIGTERM)
            signal.raise_signal(HURRY)
            assert got == []
        assert sorted(got) == ["hurry", "term"]
    assert signal.getsignal(HURRY) == before


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_drains_and_nothing_more_starts(held, log, number):
    process, gate, ids = held
    process.send(number)
    until(drains, "the worker says that it drains")
    gate.touch()
    assert process.exit_code() == 0
    assert [status(task_id) for task_id in ids] == [Status.COMPLETED, *[Status.QUEUED] * 3]
    assert lines(log)[-1].startswith("-a")
    assert "Traceback" not in process.log
    assert Worker.objects.get().status == "stopped"
    assert_index_agrees()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_second_signal_or_a_closed_terminal_gives_back_what_runs(held, number):
    process, _, ids = held
    process.send(number)
    if number == signal.SIGTERM:
        until(drains, "the worker says that it drains")
        process.send(number)
    assert process.exit_code() == 5
    first = row(ids[0])
    assert (first.status, first.attempt, first.failures) == ("queued", 1, 0)
    assert_index_agrees()


def test_a_closed_terminal_does_not_end_what_nohup_started():
    before = signal.getsignal(signal.SIGHUP)
    try:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        assert on_hangup(lambda: None) == {}
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("kind", ["hold", "hold_async"])
def test_the_grace_expires(fleet, log, tmp_path, kind):
    """An event loop does not keep the process."""
    args = [log, "a", str(tmp_path / "gate")] if kind == "hold" else [log]
    task_id = put(type_of(getattr(tasks, kind)), args=args)
    process = fleet.worker("--grace", "0.1")
    until(lambda: lines(log), "the task begins")
    process.send(signal.SIGTERM)
    assert process.exit_code() == 5
    assert status(task_id) == Status.QUEUED


@pytest.mark.serial
def test_max_tasks_ends_the_process_at_once(fleet, log):
    put_many(5, NOTE, args=[log, "x"])
    process = fleet.worker("--max-tasks", "3", "--concurrency", "2")
    until(lambda: len(lines(log)) == 3, "the tasks end")
    assert process.exit_code(seconds=8) == 0, "it needs no wake-up call to see that it is done"
    assert len(lines(log)) == 3


def test_a_worker_that_was_declared_dead_leaves(fleet, log, tmp_path):
    task_id = put(HOLD, args=[log, "a", str(tmp_path / "gate")])
    process = fleet.worker(heartbeat=0.1)
    until(lambda: lines(log), "the task begins")
    Worker.objects.update(status="dead")
    assert process.exit_code() == 3
    assert "it was declared dead" in process.log
    assert row(task_id).failures == 0
