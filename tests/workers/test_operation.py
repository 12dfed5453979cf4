"""Operations on real worker processes: dump, quiet, health check, reload."""

import os
import random
import signal
import socket
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from django.db import connection

from queue_app.core.states import Status
from queue_app.models import Worker
from queue_app.registry import type_of
from tests.integration.app import tasks
from tests.integration.processes import lines
from tests.support.engine import put, put_many, row, status
from tests.support.waiting import until

HOLD, NOTE = type_of(tasks.hold), type_of(tasks.note)


@pytest.fixture
def port() -> int:
    """Return a free port outside the range of ephemeral ports."""
    for number in random.sample(range(20_000, 30_000), 100):
        with socket.socket() as attempt:
            try:
                attempt.bind(("", number))
            except OSError:
                continue
        return number
    raise AssertionError("no port is free")


def livez(port: int) -> int:
    """Return the status of the answer; 0 when there is none."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/livez", timeout=10) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0


def test_dump_quiet_and_livez_of_two_processes(fleet, log, tmp_path, port):
    gate = tmp_path / "gate"
    ids = [put(HOLD, args=[log, name, str(gate)]) for name in "ab"]
    process = fleet.worker("--processes", "2", "--concurrency", "1", "--health-port", str(port))
    until(lambda: len(lines(log)) == 2, "both tasks begin")
    assert livez(port) == 200
    process.send(signal.SIGUSR1)
    until(lambda: process.log.count(": 1 run, 0 wait for a slot") == 2, "both say what they run")
    until(lambda: process.log.count("in hold") == 2, "with the stacks")
    assert all(str(task_id) in process.log for task_id in ids)
    process.send(signal.SIGUSR2)
    late = put(NOTE, args=[log, "late"])
    gate.touch()
    until(lambda: [status(task_id) for task_id in ids] == [Status.COMPLETED] * 2, "both complete")
    process.send(signal.SIGUSR1)
    until(lambda: process.log.count(": 0 run, 0 wait for a slot") == 2, "both have turned since")
    assert (status(late), row(late).attempt) == (Status.QUEUED, 0), "quiet workers claim nothing"
    assert livez(port) == 200, "and live"
    process.send(signal.SIGTERM)
    assert process.exit_code() == 0
    assert livez(port) == 0


def replace(path: Path, text: str, modified: float) -> None:
    """Put another text and time in the place of a file's, in one step."""
    new = path.with_suffix(".new")
    new.write_text(text, encoding="utf-8")
    os.utime(new, (modified, modified))
    new.replace(path)


def test_reload_when_the_code_changes_and_compiles(fleet, tmp_path):
    code = tmp_path / "sitecustomize.py"  # imported by every Python that finds it
    code.write_text("VERSION = 1\n", encoding="utf-8")
    process = fleet.worker("--reload", PYTHONPATH=str(tmp_path))
    until(lambda: Worker.objects.filter(status="active").exists(), "it works")
    replace(code, "VERSION = (\n", 1e9)
    until(lambda: "does not compile" in process.log, "it sees that the code is broken")
    assert Worker.objects.count() == 1
    replace(code, "VERSION = 2\n", 1.1e9)
    until(lambda: Worker.objects.filter(status="active").count() == 1 < Worker.objects.count(), "it starts again")
    assert sorted(Worker.objects.values_list("status", "pid")) == [("active", process.pid), ("stopped", process.pid)]
    assert put(NOTE, args=[str(tmp_path / "log"), "new"])
    until(lambda: lines(str(tmp_path / "log")) == ["new"], "the new one works")


def sessions(name: str) -> int:
    """Return how many connections to PostgreSQL bear a name."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_stat_activity WHERE application_name = %s", [name])
        return int(cursor.fetchone()[0])


def test_connections_are_as_many_as_slots_and_not_shared_with_forks(fleet):
    """Beside its slots, the loop and the heartbeat of a worker have one each."""
    name, slots = f"worker-{os.getpid()}", 3
    ids = put_many(400, type_of(tasks.look), args=[1])
    process = fleet.worker("--concurrency", str(slots), heartbeat=0.2, PGAPPNAME=name)
    most = 0

    def done() -> bool:
        nonlocal most
        most = max(most, sessions(name))
        return all(state == Status.COMPLETED for state in (status(ids[-1]), status(ids[0])))

    until(done, "the tasks")
    forked = [put(type_of(tasks.fork)) for _ in range(3)]
    until(lambda: all(status(task_id) == Status.COMPLETED for task_id in forked), "tasks that fork")
    for task_id in forked:
        before, theirs, after = row(task_id).outcome.value
        assert before == after, "the fork has not touched the connection"
        assert theirs not in {0, before}, "and had one of its own"
    until(lambda: sessions(name) <= slots + 2, "no connection is left over")
    assert 0 < most <= slots + 2
    process.send(signal.SIGTERM)
    assert process.exit_code() == 0
    until(lambda: sessions(name) == 0, "none outlives the worker")
