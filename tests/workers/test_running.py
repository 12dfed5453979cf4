"""What attempts report while they run, and what a worker reports about itself."""

import logging
from datetime import timedelta

import pytest
from django.tasks import task

from queue_app.core import trace
from queue_app.core.states import Status
from queue_app.models import TaskLog, TaskPayload, TaskProgress
from queue_app.registry import type_of
from queue_app.services.enqueue.store import enqueue_many
from queue_app.services.lifecycle.claim import give_back
from queue_app.workers.context import NO_REPORTS, ClaimedAttempt, QueueTaskContext
from queue_app.workers.health import HealthMonitor, LoopHeartbeat
from queue_app.workers.pools.asynchronous import AsyncPool
from queue_app.workers.progress import ProgressReports
from tests.support.engine import put, row
from tests.workers import chores

pytestmark = pytest.mark.usefixtures("captured")

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def test_progress_lines_and_a_later_deadline_are_stored_before_the_outcome(hire):
    worker = hire()
    task_id = put(type_of(chores.tells))
    worker.wake()
    worker.run_once()
    before = row(task_id).deadline
    worker.pool.finish()
    worker._store_reports()
    assert (row(task_id).deadline - before) == timedelta(seconds=60)
    worker.run_once()
    assert row(task_id).status == Status.COMPLETED
    stored = TaskProgress.objects.get(pk=task_id)
    assert (stored.attempt, stored.fraction, stored.message) == (1, 0.5, "half")
    assert TaskLog.objects.get(task_id=task_id).lines.endswith("WARNING shop: a line")
    assert not worker._reports._pending, "what has ended is forgotten"


def test_reports_of_an_attempt_that_lost_its_task_are_dropped(hire):
    worker = hire()
    put(type_of(chores.tells))
    worker.wake()
    worker.run_once()
    give_back([worker.pool.begun[0].task])
    worker.pool.finish()
    worker.run_once()
    assert not TaskProgress.objects.exists()
    assert not TaskLog.objects.exists()


def test_lines_are_bounded_and_progress_coalesced():
    rings = []
    notes = ProgressReports(lambda: rings.append(1))
    notes._max_lines = 3
    held = ClaimedAttempt(chores_task(), 0.0)
    for number in range(1000):
        notes.progress(held, number / 1000, "step")
        notes.log(held, f"line {number}\x00")
    assert len(rings) == 1
    [note] = notes.take()
    assert (note.progress, note.lines.split("\n"), note.dropped) == (
        0.999,
        [f"line {number}\\x00" for number in (997, 998, 999)],
        997,
    )
    notes.progress(held, 1, "done")
    assert notes.take() == [], "not before some time has passed"
    assert notes.due_in() > 0
    assert [note.progress for note in notes.take({held.key})] == [1]
    assert notes.due_in() is None


def chores_task():
    from tests.workers.test_executor import claimed  # noqa: PLC0415

    return claimed(chores.quick).task


@pytest.mark.parametrize("fraction", [-0.1, 1.1, float("nan")])
def test_progress_outside_of_its_bounds(fraction):
    context = QueueTaskContext(task_result=None, held=ClaimedAttempt(chores_task(), 0.0), reports=NO_REPORTS)
    with pytest.raises(ValueError, match="between 0 and 1"):
        context.progress(fraction)
    with pytest.raises(ValueError, match="seconds must lie"):
        context.extend(0)


@task
def traced() -> None:
    """Log, and enqueue another."""
    logging.getLogger("shop").error("traced")
    chores.quick.enqueue()


def test_a_trace_goes_from_the_caller_through_the_task_to_what_it_logs_and_enqueues(hire, caplog):
    worker = hire()
    with trace.use(PARENT):
        task_id = put(type_of(traced))
        many = enqueue_many([])
    assert many == []
    put(type_of(chores.quick))
    worker.until_empty()
    [line] = [record for record in caplog.records if record.getMessage() == "traced"]
    assert (line.taskqueue_task_id, line.taskqueue_trace_id) == (str(task_id), trace.trace_id(PARENT))
    traces = list(TaskPayload.objects.order_by("task_id").values_list("trace", flat=True))
    assert traces[:2] == [PARENT, None]
    assert trace.trace_id(traces[2]) == trace.trace_id(PARENT)
    assert traces[2] != PARENT, "it is another span"
    assert trace.current.get() is None


@pytest.mark.parametrize("header", ["", "x", PARENT.replace("00-", "ff-"), PARENT.replace("0af", "xyz"), PARENT + "0"])
def test_headers_that_are_no_trace(header):
    assert trace.parse(header) is None
    assert trace.parse(f" {PARENT} ") == PARENT
    assert trace.parse(PARENT.replace("00-", "cc-") + "-more") == PARENT


def test_a_quiet_worker_claims_nothing_and_stays(hire):
    worker = hire()
    worker.quiet()
    task_id = put(type_of(chores.quick))
    worker.wake()
    worker.run_once()
    assert row(task_id).status == Status.QUEUED
    assert not worker._finished()


def test_a_dump_names_what_runs_with_stacks(hire, capfd):
    worker = hire()
    task_id = put(type_of(chores.quick))
    worker.wake()
    worker.run_once()
    worker.dump()
    text = capfd.readouterr().err
    assert str(task_id) in text
    assert "thread MainThread:" in text
    assert "test_a_dump_names_what_runs_with_stacks" in text


def test_health_follows_the_loop_and_not_the_process(tmp_path, monkeypatch):
    import socket  # noqa: PLC0415

    listener = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    listener.bind(str(tmp_path / "notify"))
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
    loop_heartbeats = [LoopHeartbeat(), LoopHeartbeat()]
    health = HealthMonitor(loop_heartbeats, 5, None)
    health.check()
    loop_heartbeats[0].beat()
    assert b"503" in health.reply(b"GET /livez HTTP/1.1\r\n"), "one has not begun"
    loop_heartbeats[1].beat()
    assert b"200 OK" in health.reply(b"GET /livez HTTP/1.1\r\n")
    assert b"404" in health.reply(b"GET /secrets HTTP/1.1\r\n")
    assert b"404" in health.reply(b"")
    health.check()
    health.check()
    assert [listener.recv(100), listener.recv(100)] == [b"READY=1", b"WATCHDOG=1"]
    health._stale = -1
    health.check()
    listener.setblocking(False)
    with pytest.raises(BlockingIOError):
        listener.recv(100)
    assert b"503" in health.reply(b"GET /livez HTTP/1.1\r\n"), "a loop stands still"
    listener.close()


def test_a_loop_heartbeat_is_shared_with_a_fork():
    loop_heartbeat = LoopHeartbeat()
    assert loop_heartbeat.age is None
    loop_heartbeat.beat()
    assert 0 <= loop_heartbeat.age < 60
    loop_heartbeat.reset()
    assert loop_heartbeat.age is None


# -- coroutines ----------------------------------------------------------------------------------


def test_an_async_worker_serves_coroutine_functions_only(hire):
    pool = AsyncPool(1, None, lambda: None)
    assert pool.can_run(chores.later)
    assert not pool.can_run(chores.quick)
    pool._loop._loop.close()
