"""Workers that have neither database nor Redis, in Python and in JavaScript, pass the same tests."""

import os
import signal
import subprocess

import pytest

from queue_app import signal as signal_of_task
from queue_app.core.states import Status
from queue_app.models import Queue, Worker
from queue_app.registry import type_of
from queue_app.remote import tokens
from queue_app.services import cancel
from tests.integration.app import tasks
from tests.integration.processes import ROOT, eventually, index_comes_to_agree
from tests.support.engine import put, redis_client, row
from tests.support.programs import require

NOWHERE = {"DATABASE_URL": "postgresql://127.0.0.1:1/none", "REDIS_URL": "redis://127.0.0.1:1/0"}


@pytest.fixture
def start(fleet, live_server, tmp_path):
    """Return a function that starts a remote worker of a kind: (process, log)."""
    secret = tokens.create("far")[1]
    started = []

    def begin(kind):
        if kind == "python":
            process = fleet.worker(
                "--server", live_server.url, "--concurrency", "4", heartbeat=1, TASKQUEUE_TOKEN=secret, **NOWHERE
            )
            return process._popen, process.log_path
        node = require("node")
        log = tmp_path / "node.log"
        with log.open("wb") as output:
            command = [node, str(ROOT / "docs/examples/worker.mjs"), live_server.url, secret]
            process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, start_new_session=True)
        started.append(process)
        return process, log

    yield begin
    for process in started:
        if process.poll() is None:
            os.kill(process.pid, signal.SIGKILL)
        process.wait(30)


@pytest.mark.parametrize("kind", ["python", "node"])
def test_conformance(start, kind, tmp_path):
    """Results, failures, cancellation, types to learn, throttles, a drain: by a process that reaches neither server."""
    sums = [put(type_of(tasks.add), args=[n, 1]) for n in range(6)]
    bad = put(type_of(tasks.fail), args=["no good"])
    held = put(type_of(tasks.hold), args=[str(tmp_path / "log"), "a", str(tmp_path / "gate")])
    process, log = start(kind)
    eventually(lambda: all(row(task_id).status == Status.COMPLETED for task_id in sums), "the sums")
    assert [row(task_id).outcome.value for task_id in sums] == [1, 2, 3, 4, 5, 6]
    eventually(lambda: row(bad).status in {Status.DEAD_LETTER, Status.SCHEDULED}, "the failure")
    assert row(bad).attempts.get().message == "no good"
    eventually(lambda: row(held).status == Status.EXECUTING, "the long one begins")
    cancel(held)
    eventually(lambda: row(held).status == Status.CANCELLED, "its cancellation")
    late = put(type_of(tasks.add), args=[20, 1])
    eventually(lambda: row(late).status == Status.COMPLETED, "a task that comes while it waits")
    new = put("tests.integration.app.late.found")
    eventually(lambda: row(new).status == Status.COMPLETED, "a task of a type that it learns of")
    slow = put(type_of(tasks.told_to_wait))
    eventually(lambda: (row(slow).status, row(slow).attempt) == (Status.QUEUED, 1), "a task that is put off")
    assert row(slow).failures == 0
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0, log.read_text()
    assert [(worker.status, worker.pid) for worker in Worker.objects.all()] == [("stopped", 0)]
    index_comes_to_agree()


@pytest.mark.parametrize("lost", [False, True])
def test_a_burst_waits_for_a_rate_or_a_rebuild(fleet, live_server, index, lost):
    """The server tells when the next task can start, as the index tells a worker that reaches it."""
    queue, _ = Queue.objects.get_or_create(name="default")
    queue.rate_count, queue.rate_seconds, queue.rate_burst = 1, 0.2, 1
    queue.save()
    ids = [put(type_of(tasks.add), args=[n, 1]) for n in range(4)]
    if lost:
        redis_client().delete(*redis_client().keys(index.keys.everything))
    secret = tokens.create("far")[1]
    process = fleet.worker("--server", live_server.url, "--burst", TASKQUEUE_TOKEN=secret, **NOWHERE)
    assert process.exit_code() == 0
    assert [row(task_id).status for task_id in ids] == [Status.COMPLETED] * 4


def test_a_burst_discovers_task_types_before_it_ends(fleet, live_server):
    late = put("tests.integration.app.late.found")
    secret = tokens.create("far")[1]
    process = fleet.worker("--server", live_server.url, "--burst", TASKQUEUE_TOKEN=secret, **NOWHERE)
    assert process.exit_code() == 0
    assert row(late).status == Status.COMPLETED


@pytest.mark.parametrize("pool", ["threads", "processes"])
def test_steps_and_signals_over_http(fleet, live_server, tmp_path, pool):
    """The worker stores steps and waits for signals over HTTP, from its threads or from its processes."""
    log = tmp_path / "log"
    task_id, atomic = (
        put(type_of(tasks.in_steps), args=[str(log)], retry_delay=0.01),
        put(type_of(tasks.in_atomic_step), max_retries=0),
    )
    secret = tokens.create("far")[1]
    fleet.worker("--server", live_server.url, "--pool", pool, heartbeat=1, TASKQUEUE_TOKEN=secret, **NOWHERE)
    fleet.scheduler()
    eventually(lambda: row(task_id).status == Status.BLOCKED, "it waits")
    signal_of_task(task_id, "go", {"ok": True})
    eventually(lambda: row(task_id).status == Status.COMPLETED, "it goes on")
    assert row(task_id).outcome.value == [None, {"ok": True}]
    assert log.read_text().split() == ["first", "second"]
    names = row(task_id).steps.order_by("position").values_list("name", flat=True)
    assert list(names) == ["first", "wait for go", "second"]
    eventually(lambda: row(atomic).status == Status.DEAD_LETTER, "it is refused")
    assert "reaches only over HTTP" in row(atomic).attempts.get().message
