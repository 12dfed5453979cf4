"""What attempts report while they run, and what a worker reports about itself."""

import logging
import os
import subprocess
import sys
import time
from datetime import timedelta

import pytest
from django.tasks import task

from queue_app.core import trace
from queue_app.core.states import Status
from queue_app.models import TaskLog, TaskPayload, TaskProgress, Worker
from queue_app.registry import type_of
from queue_app.services.enqueue.store import enqueue_many
from queue_app.services.lifecycle.claim import give_back
from queue_app.workers import resources
from queue_app.workers.context import NO_REPORTS, ClaimedAttempt, QueueTaskContext
from queue_app.workers.health import HealthMonitor, LoopHeartbeat
from queue_app.workers.progress import ProgressReports
from queue_app.workers.resources import UsageMeter
from queue_app.workers.summary import Summary
from tests.support.engine import put, row
from tests.support.waiting import until
from tests.workers import chores
from tests.workers.pools.stand import opened

pytestmark = pytest.mark.usefixtures("captured")

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def test_progress_lines_and_a_later_deadline_are_stored_before_the_outcome(hire):
    worker = hire()
    task_id = put(type_of(chores.tells))
    worker.turn()
    before = row(task_id).deadline
    worker.pool.finish()
    worker.store_reports()
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
    worker.turn()
    give_back([worker.pool.begun[0].task])
    worker.end()
    assert not TaskProgress.objects.exists()
    assert not TaskLog.objects.exists()


def test_lines_are_bounded_and_progress_coalesced(settings):
    settings.TASKQUEUE = {**settings.TASKQUEUE, "TASK_LOGS": {"MAX_LINES": 3}}
    rings = []
    notes = ProgressReports(lambda: rings.append(1))
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
    worker.turn()
    assert row(task_id).status == Status.QUEUED
    assert not worker.is_finished


def test_a_dump_names_what_runs_with_stacks(hire, capfd):
    worker = hire()
    task_id = put(type_of(chores.quick))
    worker.turn()
    worker.dump()
    text = capfd.readouterr().err
    assert str(task_id) in text
    assert "thread MainThread:" in text
    assert "test_a_dump_names_what_runs_with_stacks" in text


def test_health_follows_the_loop_and_not_the_process(tmp_path, monkeypatch, clock):
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
    clock.now += 6
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
    with opened("async") as pool:
        assert pool.can_run(chores.later)
        assert not pool.can_run(chores.quick)


# -- the summary -----------------------------------------------------------------------------------------------------


@pytest.fixture
def lines(caplog, clock):
    caplog.set_level(logging.INFO, "taskqueue")
    return lambda: caplog.messages


def test_the_first_line_comes_after_a_second_and_the_next_after_a_minute(clock, lines):
    summary = Summary()
    assert summary.due_in() is None
    summary.add("completed", task_type="shop.pay")
    assert summary.due_in() == 1
    summary.log_if_due()
    assert lines() == []
    clock.now += 1
    summary.add("failed", task_type="shop.mail")
    summary.log_if_due(running=2)
    assert lines() == ["done in 1 s: 1 completed, 1 failed (shop.pay 1, shop.mail 1); 2 running"]
    summary.add("completed", 3, "shop.pay")
    assert summary.due_in() == 60
    clock.now += 60
    summary.log_if_due()
    assert lines()[1:] == ["done in 60 s: 3 completed (shop.pay 3)"]
    assert summary.totals == {"completed": 4, "failed": 1}


def test_after_a_pause_the_line_covers_the_time_since_its_end(clock, lines):
    summary = Summary()
    clock.now += 3600
    summary.add("became due", 7)
    clock.now += 1
    summary.log_if_due()
    assert lines() == ["done in 1 s: 7 became due"]
    summary.log_if_due()
    assert len(lines()) == 1, "there is nothing new"


def test_a_line_names_the_most_frequent_types(clock, lines):
    summary = Summary()
    for number in range(5):
        summary.add("completed", number + 1, f"type{number}")
    clock.now += 1
    summary.log_if_due()
    assert lines() == ["done in 1 s: 15 completed (type4 5, type3 4, type2 3 and 2 more)"]


# -- usage -----------------------------------------------------------------------------------------------------------


def burn(seconds):
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


def test_a_busy_process_shows_processor_time_and_memory():
    meter = UsageMeter()
    burn(0.1)
    busy = meter.read()
    assert busy.cpu_percent > 0
    assert 2**20 < busy.memory_bytes < 2**34


def test_the_share_is_that_of_the_time_between_two_readings(monkeypatch, clock):
    used = {os.getpid(): 7.0, 4711: 3.0}
    monkeypatch.setattr(resources, "_cpu_seconds", used.get)
    meter = UsageMeter(lambda: [4711, 4712])
    for seconds, changes, percent in [
        (10, {os.getpid(): 12.0, 4711: 8.0}, 100.0),
        (10, {}, 0.0),
        (4, {4712: 1.0}, 25.0),  # started since
        (4, {4711: 0.5}, 0.0),  # another process with the same pid
    ]:
        clock.now += seconds
        used |= changes
        assert meter.read().cpu_percent == percent


def test_the_processes_of_the_pool_count():
    child = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        meter = UsageMeter(lambda: [child.pid])
        alone = UsageMeter()
        until(lambda: meter.read().cpu_percent >= 5, "it uses the processor")
        assert meter.read().memory_bytes > alone.read().memory_bytes
    finally:
        child.kill()
        child.wait()
    assert meter.read().memory_bytes is not None, "a process that has gone is left out"


def test_a_system_without_proc_tells_the_processor_time_only(monkeypatch):
    monkeypatch.setattr(resources, "_cpu_seconds", lambda _pid: None)
    monkeypatch.setattr(resources, "resident_bytes", lambda _pid: None)
    meter = UsageMeter()
    burn(0.05)
    found = meter.read()
    assert found.cpu_percent > 0
    assert found.memory_bytes is None


@pytest.mark.django_db(transaction=True)
def test_a_worker_tells_it_with_its_heartbeat(hire):
    worker = hire()
    assert worker.beat()
    row = Worker.objects.get(pk=worker.id)
    assert row.cpu_percent is not None
    assert row.memory_bytes > 2**20
    assert row.supervisor_pid is None
    assert row.pid == os.getpid()
