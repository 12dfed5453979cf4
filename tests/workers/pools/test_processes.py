"""The process pool: runs in order, kills tasks that do not end, replaces processes that died or grew."""

import gc
import json
import os
import signal
import socket
import subprocess
from contextlib import ExitStack, suppress
from pathlib import Path

import psutil
import pytest

from queue_app import task
from queue_app.exceptions import Interruption, InvalidTaskData, TaskCancelled
from queue_app.workers.deadlines import enforce
from queue_app.workers.options import WorkerOptions
from queue_app.workers.pools.slot import Slot
from queue_app.workers.resources import ResourceLimits, parse_rlimit
from queue_app.workers.transport.http import Reader
from tests.support.waiting import let_pass, until
from tests.workers import chores
from tests.workers.pools.stand import INTERRUPTIONS, opened, outcomes
from tests.workers.test_discovery import new_module
from tests.workers.test_executor import claimed

pytestmark = pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")


class ProgressSink:
    """Records the reports of attempts."""

    def __init__(self):
        self.said = []

    def __getattr__(self, kind):
        return lambda held, *what: self.said.append((kind, *what))


@pytest.fixture
def open_pool():
    """Return a function that starts a pool; all of them are stopped, and leave no process behind."""
    before = set(psutil.Process().children())
    with ExitStack() as stack:
        yield lambda slots=1, **options: stack.enter_context(opened("processes", slots, **options))
    assert set(psutil.Process().children()) <= before


def begun(pool, path):
    """Wait until a task has written its process id."""
    until(lambda: path.exists() and bool(path.read_text()), "its begin")
    return int(path.read_text())


def test_attempts_run_in_processes_of_their_own(open_pool):
    sink = ProgressSink()
    pool = open_pool(2, reports=sink)
    pool.submit([claimed(chores.echo, number) for number in range(20)] + [claimed(chores.whoami) for _ in range(2)])
    ended = outcomes(pool, 22)
    assert sorted(int(outcome.result) for outcome in ended if outcome.task.args != "[]") == list(range(20))
    pids = {int(outcome.result) for outcome in ended if outcome.task.args == "[]"}
    assert pids <= set(pool.pids)
    assert os.getpid() not in pids
    failures = [claimed(chores.raises, kind) for kind in ("value", "exit", "silent", "nul")]
    pool.submit([*failures, claimed(chores.control, "snooze"), claimed(chores.control, "discard")])
    ended = {outcome.task.parameters + outcome.task.args: outcome for outcome in outcomes(pool, 6)}
    assert ended['{}["value"]'].failure.exception_class == "builtins.ValueError"
    assert ended['{}["exit"]'].failure.exception_class == "builtins.SystemExit"
    assert ended['{}["snooze"]'].snooze == 30
    assert not ended['{}["discard"]'].failure.retriable
    pool.submit([claimed(chores.later, 4), claimed(chores.tells)])
    assert {outcome.result for outcome in outcomes(pool, 2)} == {"8", '"reported"'}
    assert [item for item in sink.said if item[0] != "log"] == [("progress", 0.5, "half"), ("extend", 60.0)]
    assert next(item for item in sink.said if item[0] == "log")[1].endswith("WARNING shop: a line")


@pytest.mark.parametrize(("kind", "reason"), INTERRUPTIONS)
def test_a_blocking_task_is_interrupted_and_a_resisting_one_is_killed(open_pool, tmp_path, kind, reason):
    pool = open_pool()
    held = claimed(chores.blocks, str(tmp_path / "soft"))
    pool.submit([held])
    pid = begun(pool, tmp_path / "soft")
    assert pool.interrupt(held, kind)
    assert not pool.interrupt(held, kind), "once is enough"
    assert outcomes(pool)[0].failure.reason == reason
    held = claimed(chores.resists, str(tmp_path / "hard"))
    pool.submit([held, claimed(chores.whoami)])
    assert begun(pool, tmp_path / "hard") == pid, "the process lives on"
    pool.interrupt(held, kind)
    let_pass(0.05)
    assert pool.abandon(held, kind()).failure.reason == reason
    assert pool.abandon(held, kind()) is None
    assert json.loads(outcomes(pool)[0].result) != pid
    until(lambda: not psutil.pid_exists(pid), "the end of the process")


@task
def swallows_once(path: str) -> None:
    """Swallow the first interruption, go on, and clean up after the second."""
    try:
        with suppress(Interruption):
            chores.tell_and_wait(path)
        chores.tell_and_wait(os.devnull)
    finally:
        let_pass(0.3)  # longer than the pause between two interruptions
        Path(path).write_text("cleaned up", encoding="utf-8")


def test_an_attempt_that_swallows_its_interruption_gets_another(open_pool, tmp_path):
    pool = open_pool()
    pool.repeat_after, pool.kill_after = 0.1, 60
    held = claimed(swallows_once, str(tmp_path / "state"))
    pool.submit([held, claimed(chores.whoami)])
    pid = begun(pool, tmp_path / "state")
    pool.interrupt(held, TaskCancelled)
    ended = []
    until(lambda: enforce(pool, set()) or ended.extend(pool.take_outcomes()) or len(ended) == 2, "the outcomes")
    assert ended[0].failure.reason == "cancelled"
    assert (tmp_path / "state").read_text() == "cleaned up"
    assert json.loads(ended[1].result) == pid, "the process lives on"


@task
def writes_to_the_worker() -> None:
    """Write to the connection on which its process gets tasks."""
    reader = next(item for item in gc.get_objects() if isinstance(item, Reader))
    reader._source.sendall(b"\0\0\0\4junk")
    chores.tell_and_wait(os.devnull)


def test_a_process_that_sends_no_message_is_killed(open_pool):
    pool = open_pool()
    pool.submit([claimed(writes_to_the_worker), claimed(chores.echo, 1)])
    failed, after = outcomes(pool, 2)
    assert "a task wrote to its connection" in failed.failure.message
    assert after.result == "1"


def test_a_type_that_the_worker_has_found_since_its_start(open_pool, monkeypatch):
    source = "from queue_app import task\n@task\ndef greet():\n    return 'hello'\n"
    new_module(monkeypatch, "taskqueue_project.demo.newer", source)
    pool = open_pool()
    pool.submit([claimed("taskqueue_project.demo.newer.greet")])
    assert outcomes(pool)[0].result == '"hello"'


def test_a_process_that_dies_fails_its_task_and_is_replaced(open_pool, tmp_path):
    pool = open_pool()
    pool.submit([claimed(chores.dies), claimed(chores.whoami)])
    died, after = outcomes(pool, 2)
    assert died.failure.exception_class == "queue_app.exceptions.WorkerDied"
    assert "SIGKILL" in died.failure.message
    os.kill(int(after.result), signal.SIGKILL)  # idle
    pool.submit([claimed(chores.blocks, str(tmp_path / "pid"))])
    until(lambda: pool.take_outcomes() or (tmp_path / "pid").exists(), "the next one runs, or fails with the old")


def test_limits(open_pool):
    own = psutil.Process().memory_info().rss  # a child begins with about as much
    pool = open_pool(max_tasks=2, max_memory=own + 300 * 1024**2, rlimits=(("nofile", 64),))
    pool.submit([claimed(chores.whoami) for _ in range(4)])
    pids = [int(outcome.result) for outcome in outcomes(pool, 4)]
    assert pids[0] == pids[1] != pids[2] == pids[3]
    pool.submit([claimed(chores.opens, 100)])
    assert "Too many open files" in outcomes(pool)[0].failure.message
    pool.submit([claimed(chores.eats, 600)])
    assert "--max-memory" in outcomes(pool)[0].failure.message


def test_a_pool_that_stops_leaves_nothing_behind(open_pool, tmp_path):
    servers = set(psutil.Process().children(recursive=True))  # of the tests
    pool = open_pool(slots=2)
    pool.submit([claimed(chores.resists, str(tmp_path / "pid"))])
    begun(pool, tmp_path / "pid")
    started = set(psutil.Process().children(recursive=True)) - servers
    assert len(started) >= 2
    pool.stop()
    until(lambda: not any(process.is_running() for process in started), "the end of all")


@pytest.mark.parametrize("text", ["nofile", "nofil=3", "as=x", "as=-1", "as=1.5G"])
def test_limits_that_make_no_sense(text):
    with pytest.raises(InvalidTaskData) as refused:
        parse_rlimit(text)
    assert refused.value.field == "rlimit"
    assert parse_rlimit(" AS = 2g ".replace(" = ", "=")) == ("as", 2 * 1024**3)


def test_options_refuse_limits_where_nothing_can_be_limited():
    with pytest.raises(InvalidTaskData, match="--pool processes"):
        WorkerOptions(limits=ResourceLimits(max_tasks=3))
    with pytest.raises(InvalidTaskData, match="threads, processes, async"):
        WorkerOptions(pool="gevent")


# -- a slot ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def slot():
    ours, theirs = socket.socketpair()
    stacks, writes = socket.socketpair()
    slot = Slot(ours, stacks)
    yield slot
    slot.close()
    theirs.close()
    writes.close()


@pytest.fixture
def process():
    with subprocess.Popen(["sleep", "600"]) as started:
        yield started
        started.kill()


def test_a_signal_waits_for_the_pid(slot, process):
    """The attempt runs, and the fork server's message with the pid was not read yet."""
    slot.held = claimed("a.task")
    slot.kill(signal.SIGKILL, "it writes to its connection")
    slot.kill(signal.SIGUSR1)  # of a timeout that comes after it
    slot.set_pid(process.pid)
    assert process.wait(60) == -signal.SIGKILL
    assert slot.kill_reason == "it writes to its connection"


def test_a_signal_that_waits_is_not_sent_to_the_next_attempt(slot, process):
    slot.held = claimed("a.task")
    slot.kill(signal.SIGKILL)
    slot.held = claimed("a.task")
    slot.set_pid(process.pid)
    slot.kill(signal.SIGTERM)
    assert process.wait(60) == -signal.SIGTERM
