"""Several worker processes under one, with real signals and real deaths."""

import os
import signal
import subprocess
import time
import uuid
from collections.abc import Iterator
from operator import attrgetter

import psutil
import pytest

from queue_app.core.states import Status
from queue_app.models import Limit, Worker
from queue_app.registry import type_of
from queue_app.workers.health import LoopHeartbeat
from queue_app.workers.lifecycle import HURRY, Exit
from queue_app.workers.options import MAX_NAME, WorkerOptions
from queue_app.workers.process_guard import CHECKS, LifeWatch
from queue_app.workers.supervisor import DONE, KILL_SECONDS, Child, Supervisor
from queue_app.workers.transport.base import DirectTransport
from tests.integration.app import tasks
from tests.integration.processes import Process, lines
from tests.support.engine import assert_index_agrees, put, put_many, row, status
from tests.support.waiting import until

HOLD, NOTE, WORK = type_of(tasks.hold), type_of(tasks.note), type_of(tasks.work)


@pytest.fixture
def gate(tmp_path):
    """What the tasks that hold wait for."""
    return tmp_path / "gate"


@pytest.fixture
def pair(fleet, log, gate):
    """Two worker processes of one slot, each with a task that holds: (supervisor, ids, pid of each task)."""
    ids = [put(HOLD, args=[log, name, str(gate)]) for name in "ab"]
    process = fleet.worker("--processes", "2", "--concurrency", "1", heartbeat=0.2)
    until(lambda: len(lines(log)) == 2, "both tasks begin")
    return process, ids, holders(log)


def holders(log: str) -> dict[str, int]:
    """Return who has begun each task last."""
    return {line.split()[0][1:]: int(line.split()[1]) for line in lines(log) if line.startswith("+")}


def living() -> int:
    """Return how many workers are active."""
    return Worker.objects.filter(status__in=["active", "draining"]).count()


def gone(process: Process, pids) -> bool:
    """Whether all of these have ended."""
    return all(not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE for pid in pids)


def test_each_has_a_process_and_a_name(pair):
    process, _, pids = pair
    assert len(set(pids.values())) == 2
    assert set(pids.values()) == set(process.children())
    names = sorted(Worker.objects.values_list("name", flat=True))
    assert [name.rpartition("/")[2] for name in names] == ["1", "2"]
    assert set(Worker.objects.values_list("pid", flat=True)) == set(pids.values())


def test_a_killed_child_is_replaced_and_its_task_given_back_at_once(fleet, log, gate):
    """No heartbeat decides here: the supervisor sees the end."""
    ids = [put(HOLD, args=[log, name, str(gate)]) for name in "ab"]
    process = fleet.worker("--processes", "2", "--concurrency", "1", heartbeat=60)
    until(lambda: len(lines(log)) == 2, "both tasks begin")
    victim = holders(log)["a"]
    os.kill(victim, signal.SIGKILL)
    until(lambda: len(lines(log)) == 3, "another worker begins the task again")
    assert holders(log)["a"] != victim
    assert len(process.children()) == 2
    assert "died with code -9" in process.log
    gate.touch()
    until(lambda: [status(task_id) for task_id in ids] == [Status.COMPLETED] * 2, "both complete")
    assert row(ids[0]).attempt == 2
    assert row(ids[0]).failures == 0
    process.send(signal.SIGTERM)
    assert process.exit_code() == 0
    assert_index_agrees()


@pytest.mark.parametrize("code", [Exit.LOST, Exit.GAVE_BACK])
def test_a_task_that_ends_its_process_with_a_code_of_the_worker_is_noticed_at_once(fleet, log, code):
    task_id = put(type_of(tasks.end_once), args=[log, str(int(code))])
    process = fleet.worker("--processes", "2", "--concurrency", "1", heartbeat=60)
    until(lambda: status(task_id) == Status.COMPLETED, "the task completes")
    assert f"died with code {int(code)}" in process.log
    process.send(signal.SIGTERM)
    assert process.exit_code() == 0


@pytest.mark.parametrize("how", ["exit", "term"])
def test_a_child_that_ends_with_0_unasked_is_replaced(fleet, log, how):
    task_id = put(type_of(tasks.end_once), args=[log, how])
    process = fleet.worker("--processes", "2", "--concurrency", "1")
    until(lambda: status(task_id) == Status.COMPLETED, "the task completes")
    until(lambda: "ended with code 0, but was not asked to" in process.log, "the supervisor sees it")
    until(lambda: len(process.children()) == 2, "it is replaced")
    assert row(task_id).attempt == (2 if how == "exit" else 1)
    process.send(signal.SIGTERM)
    assert process.exit_code() == 0
    assert_index_agrees()


def test_a_burst_does_not_end_while_work_is_left(fleet, log):
    ids = [put(type_of(tasks.end_once), args=[log, "exit"]) for _ in range(2)]
    process = fleet.worker("--processes", "2", "--concurrency", "1", "--burst")
    assert process.exit_code() == 0
    assert [status(task_id) for task_id in ids] == [Status.COMPLETED] * 2


@pytest.mark.slow
def test_a_task_that_keeps_the_lock_of_python_costs_one_process(fleet, log):
    stuck = put(type_of(tasks.keep_lock), args=[log])
    process = fleet.worker("--processes", "2", "--concurrency", "2", heartbeat=0.05, TASKQUEUE__RETRY__MAX_CRASHES="1")
    until(lambda: lines(log), "it begins")
    until(lambda: status(stuck) == Status.DEAD_LETTER, "it is given up")
    after = put(NOTE, args=[log, "after"])
    until(lambda: len(process.children()) == 2 and status(after) == Status.COMPLETED, "two processes work")
    assert "ran no Python code for too long" in process.log
    assert "in keep_lock" in process.log, "the stack"
    process.send(signal.SIGTERM)
    assert process.exit_code() == 0


IMPATIENT = """
import django, sys
from django.core.management import execute_from_command_line
django.setup()
from queue_app.workers import deadlines
deadlines.STUCK_SECONDS = deadlines.REPLACE_SECONDS = 0.5
execute_from_command_line(["manage.py", *sys.argv[1:]])
"""


@pytest.mark.parametrize("processes", [1, 2])
def test_a_task_that_never_ends_costs_one_process_and_breaks_no_limit(fleet, log, processes):
    """It blocks outside of Python, where no exception reaches it; the limit is 1."""
    Limit.objects.create(scope="key", name="k", max_concurrent=1)
    stuck = put(WORK, args=[log, "stuck", 600], timeout=1, max_retries=0, concurrency_key="k")
    after = put(WORK, args=[log, "after", 0], concurrency_key="k")
    process = fleet.start("runworker", "--processes", str(processes), program=("-c", IMPATIENT))
    until(lambda: status(after) == Status.COMPLETED, "another process runs the next one")
    assert lines(log) == ["+stuck", "+after", "-after"]
    assert (row(stuck).status, row(stuck).crashes) == (Status.DEAD_LETTER, 0)
    assert "its process is replaced" in process.log
    process.send(signal.SIGTERM)
    assert process.exit_code() == 0
    assert_index_agrees()


def test_a_process_whose_own_code_fails_is_replaced(fleet, log):
    """A task has lowered the recursion limit, and the worker's threads cannot go on."""
    poison = put(type_of(tasks.lower_limit), args=[log])
    process = fleet.worker("--processes", "2", "--concurrency", "1", TASKQUEUE__RETRY__MAX_CRASHES="1")
    until(lambda: status(poison) == Status.DEAD_LETTER, "it is given up")
    ids = put_many(10, NOTE, args=["/dev/null", "after"])
    until(lambda: {status(task_id) for task_id in ids} == {Status.COMPLETED}, "the others run")
    until(lambda: len(process.children()) == 2, "it is replaced")


def all_drain() -> None:
    until(lambda: Worker.objects.filter(status="draining").count() == 2, "both say that they drain")


@pytest.mark.parametrize("how", ["a signal", "Ctrl-C in a terminal", "a service manager"])
def test_a_stop_drains_all(pair, gate, how):
    """A terminal sends Ctrl-C to the whole group, a service manager SIGTERM to each process: twice for the children."""
    process, ids, pids = pair
    if how == "Ctrl-C in a terminal":
        os.killpg(process.pid, signal.SIGINT)
    else:
        for pid in [process.pid, *(pids.values() if how == "a service manager" else ())]:
            os.kill(pid, signal.SIGTERM)
    all_drain()
    late = put(NOTE, args=["/dev/null", "late"])
    gate.touch()
    assert process.exit_code() == 0
    assert [status(task_id) for task_id in [*ids, late]] == [Status.COMPLETED, Status.COMPLETED, Status.QUEUED]
    assert "Traceback" not in process.log
    assert gone(process, pids.values())
    assert living() == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_second_signal_or_a_closed_terminal_gives_back_what_runs(pair, number):
    process, ids, pids = pair
    process.send(number)
    if number == signal.SIGTERM:
        all_drain()
        process.send(number)
    assert process.exit_code() == 5
    assert gone(process, pids.values())
    left = [(row(task_id).status, row(task_id).attempt, row(task_id).failures) for task_id in ids]
    assert left == [("queued", 1, 0)] * 2
    assert_index_agrees()


def test_children_end_when_their_supervisor_is_killed(pair):
    process, ids, pids = pair
    os.kill(process.pid, signal.SIGKILL)
    until(lambda: gone(process, pids.values()), "the children end")
    assert [status(task_id) for task_id in ids] == [Status.QUEUED] * 2
    assert living() == 0


@pytest.mark.parametrize("children", [0, 1, 3])
def test_a_signal_while_the_children_start_is_not_lost(fleet, children):
    process = fleet.worker("--processes", "4")
    while process.alive and len(process.children()) <= children:  # no pause: it is about the very moment
        pass
    process.send(signal.SIGTERM)
    if children == 0 and process.exit_code() == -signal.SIGTERM:
        return  # it came before the supervisor had a handler
    assert process.exit_code() == 0
    assert living() == 0


def test_a_burst_ends_all(fleet, log):
    put_many(40, NOTE, args=[log, "x"])
    process = fleet.worker("--processes", "2", "--burst", "--name", "n" * MAX_NAME)
    assert process.exit_code() == 0
    assert len(lines(log)) == 40
    assert {len(name) for name in Worker.objects.values_list("name", flat=True)} == {MAX_NAME}


# -- decisions, without processes -----------------------------------------------------------------------


class StillSupervisor(Supervisor):
    """One whose loop is the test, and that marks no worker dead."""

    on_ended, kill_stuck, start = Supervisor._on_ended, Supervisor._kill_stuck, Supervisor._start
    worst = property(attrgetter("_worst"))
    kill_at = property(attrgetter("_kill_at"))
    restarts = property(attrgetter("_restarts"))

    def __init__(self, count: int = 2) -> None:
        transport = DirectTransport()
        transport.mark_dead = lambda _worker_id: None  # type: ignore[method-assign]
        super().__init__(WorkerOptions(), transport, count)
        self.heartbeats, self.children = self._heartbeats, self._children


@pytest.fixture
def supervisor() -> StillSupervisor:
    return StillSupervisor()


def child(lived: float, backoff: float = 0.0) -> Child:
    """Return a child that was started ``lived`` seconds ago."""
    return Child(1, uuid.uuid4(), 1, time.monotonic() - lived, backoff, LifeWatch(LoopHeartbeat()))


@pytest.mark.parametrize(
    ("lived", "backoff", "following"), [(60, 8, 0), (1, 0, 0.5), (1, 0.5, 1), (1, 4, 8), (1, 29, 30), (1, 30, 30)]
)
def test_a_child_that_dies_young_is_restarted_after_growing_delays(supervisor, lived, backoff, following):
    one = child(lived, backoff)
    supervisor.on_ended(one, 1)
    assert one.backoff == following
    assert len(supervisor.restarts) == 1


def test_a_child_that_has_done_its_work_is_not_replaced(supervisor):
    supervisor.on_ended(child(1), DONE)
    assert supervisor.restarts == []


@pytest.fixture
def sleeper(supervisor) -> Iterator[subprocess.Popen[bytes]]:
    """A process that the supervisor takes for its child."""
    with subprocess.Popen(["sleep", "60"]) as process:
        watch = LifeWatch(supervisor.heartbeats[0])
        supervisor.children[process.pid] = Child(1, uuid.uuid4(), process.pid, time.monotonic(), 0.0, watch)
        yield process
        process.kill()


@pytest.fixture
def signals(supervisor, sleeper, monkeypatch) -> Iterator[list[int]]:
    """The signals that the supervisor sends to its child."""
    sent: list[int] = []
    with monkeypatch.context() as patch:
        patch.setattr(os, "kill", lambda _pid, number: sent.append(number))
        yield sent


def test_a_child_that_shows_no_life_is_ended_and_a_stopped_one_killed(supervisor, signals):
    for look in range(5):
        supervisor.heartbeats[0].beat()
        supervisor.kill_stuck(look)
    for look in range(CHECKS - 1):
        supervisor.kill_stuck(look)
    assert signals == []
    supervisor.kill_stuck(100)
    assert signals == [signal.SIGALRM]
    for look in range(CHECKS):
        supervisor.kill_stuck(look)
    assert signals == [signal.SIGALRM]
    supervisor.kill_stuck(200)
    assert signals == [signal.SIGALRM, signal.SIGKILL]


def test_a_freeze_counts_as_one_check_however_long_it_was(supervisor, signals, clock):
    """A paused container stops the supervisor and its children; all continue at the same moment."""
    for _ in range(3 * CHECKS):
        supervisor.heartbeats[0].beat()
        supervisor.run_once()
        clock.now += 150
        supervisor.run_once()
    supervisor.stop()
    supervisor.run_once()
    clock.now += 150  # longer than the grace period
    supervisor.run_once()
    assert signals == [signal.SIGTERM], "the child still has the rest of its grace period"
    for _ in range(8):
        clock.now += 5
        supervisor.heartbeats[0].beat()
        supervisor.run_once()
    assert signals == [signal.SIGTERM, signal.SIGKILL]


def test_a_child_that_has_not_begun_to_beat_is_left_alone(supervisor, signals):
    for look in range(5 * CHECKS):
        supervisor.kill_stuck(look)
    assert signals == []


def test_a_child_that_ignores_the_stop_is_killed(supervisor, signals):
    supervisor.stop()
    supervisor.run_once()
    assert supervisor.kill_at == pytest.approx(
        time.monotonic() + supervisor.options.grace_seconds + KILL_SECONDS, abs=5
    )
    supervisor.stop()
    supervisor.run_once()
    assert supervisor.kill_at == pytest.approx(time.monotonic() + KILL_SECONDS, abs=5), "it does not wait any more"
    supervisor.kill_stuck(supervisor.kill_at)
    assert signals == [signal.SIGTERM, HURRY, signal.SIGKILL]


def test_nothing_is_replaced_once_it_stops(supervisor):
    supervisor.stop()
    supervisor.on_ended(child(1), -9)
    assert supervisor.restarts == []


@pytest.mark.parametrize(
    ("codes", "worst"),
    [([0, 0], Exit.OK), ([0, 5], Exit.GAVE_BACK), ([3, 0], Exit.LOST), ([-9, 0], Exit.CRASHED), ([5, 1], 5), ([77], 1)],
)
def test_the_worst_code_counts(supervisor, codes, worst):
    supervisor.stop()
    for code in codes:
        supervisor.on_ended(child(1), code)
    assert supervisor.worst == worst


def test_a_crash_that_was_made_good_does_not_count(supervisor):
    supervisor.on_ended(child(1), -9)
    supervisor.stop()
    supervisor.on_ended(child(1), 0)
    assert supervisor.worst == Exit.OK


def test_a_process_that_cannot_be_started_is_retried_after_growing_delays(monkeypatch):
    """Memory is short: that must not end the workers that run."""

    def refuse():
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(os, "fork", refuse)
    above, waits = StillSupervisor(1), [0.0]
    for _ in range(3):
        above.start(1, waits[-1])
        waits += [child.backoff for _, child in above.restarts]
        above.restarts.clear()
    assert waits == [0.0, 0.5, 1.0, 2.0]
