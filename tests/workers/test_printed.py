"""What runworker and runscheduler print in a project that does not set LOGGING."""

import json
import logging
import signal

import pytest
from django.conf import settings as project
from django.utils import timezone

from queue_app.exceptions import IndexUnavailable
from queue_app.models import Task
from queue_app.registry import type_of
from queue_app.services.upkeep.jobs import resign, take_lead
from tests.integration.app import tasks
from tests.integration.processes import lines
from tests.support.engine import put
from tests.support.waiting import until

DEFAULT = {"DJANGO_SETTINGS_MODULE": "tests.workers.default_logging"}
FAIL, HOLD = type_of(tasks.fail), type_of(tasks.hold)


@pytest.fixture
def first_hour(engine):
    """A task that fails once and is retried, one that fails for good, and one that logs an error."""
    put(FAIL, args=["try again"], max_retries=1, retry_delay=60)
    put(FAIL, args=["no use"], max_retries=0)
    put(type_of(tasks.complain), args=["the card was refused"])


def test_a_worker_says_what_it_is_and_what_happens(fleet, first_hour):
    worker = fleet.worker("--burst", "--name", "w1", **DEFAULT)
    assert worker.exit_code() == 0
    [start] = [line for line in worker.log.splitlines() if "worker w1: " in line]
    for part in ("queues: all", "slots: 5 (threads)", "Redis: redis://", "PostgreSQL: postgresql://", "Ctrl-C"):
        assert part in start
    assert project.DATABASES["default"]["PASSWORD"] not in worker.log
    assert "queue_app.webhooks" not in start, "the queue's own tasks are not those of the project"
    assert f"WARNING taskqueue: {FAIL} failed: ValueError: try again; retry 1 of 1 in 60 s" in worker.log
    assert f"ERROR taskqueue: {FAIL} failed: ValueError: no use; no retries are left, it is a dead letter" in worker.log
    assert worker.log.count("Traceback (most recent call last)") == 2
    assert "executor.py" not in worker.log, "tracebacks begin with the function of the task"
    [complaint] = [line for line in worker.log.splitlines() if "the card was refused" in line]
    assert "ERROR tests.integration.app.tasks: the card was refused (tests.integration.app.tasks.complain " in complaint
    assert "worker w1 has stopped: 1 completed, 2 failed" in worker.log


def test_a_queue_that_does_not_exist(fleet, first_hour):
    worker = fleet.worker("--burst", "--queues", "defualt", **DEFAULT)
    assert worker.exit_code() == 0
    warning = "There is no queue 'defualt'. Did you mean 'default'? The worker serves it when a task names it."
    assert f"WARNING taskqueue: {warning}" in worker.log


def test_the_log_as_json(fleet, first_hour):
    worker = fleet.worker("--burst", "--json", **DEFAULT)
    assert worker.exit_code() == 0
    found = [json.loads(line) for line in worker.log.splitlines()]
    [dead] = [line for line in found if line.get("status") == "dead_letter"]
    assert (dead["level"], dead["error"]) == ("ERROR", "builtins.ValueError")
    assert found[-1]["event"] == "Stopping"


@pytest.mark.parametrize(("option", "shows"), [("-q", False), ("-v2", True)])
def test_verbosity(fleet, first_hour, option, shows):
    worker = fleet.worker("--burst", option, "--name", "w1", **DEFAULT)
    assert worker.exit_code() == 0
    assert ("worker w1 has stopped" in worker.log) is shows
    assert ("complain completed after" in worker.log) is shows
    assert "ValueError: no use" in worker.log


def test_a_worker_that_stops_says_what_it_finishes_and_what_it_gives_back(fleet, log, tmp_path):
    for name in "ab":
        put(HOLD, args=[log, name, str(tmp_path / "gate")])
    worker = fleet.worker("--name", "w1", **DEFAULT, PYTHONUNBUFFERED="")
    until(lambda: len(lines(log)) == 2, "both tasks begin")
    put(type_of(tasks.say), args=["now"])
    until(lambda: "now\n" in worker.log, "what a task prints appears at once")
    worker.send(signal.SIGINT)
    until(lambda: "worker w1 finishes 2 tasks, 30 s at most; Ctrl-C or SIGTERM again" in worker.log, "it says so")
    worker.send(signal.SIGINT)
    assert worker.exit_code() == 5
    assert f"worker w1 has stopped: 1 completed, 2 tasks given back ({HOLD} 2)" in worker.log


def test_the_lines_of_several_processes_have_their_numbers(fleet, first_hour):
    worker = fleet.worker("--processes", "2", "--concurrency", "1", "--burst", **DEFAULT)
    assert worker.exit_code() == 0
    assert {line[:4] for line in worker.log.splitlines() if "has stopped" in line} == {"1 | ", "2 | "}
    assert all(line[:4] in {"1 | ", "2 | "} for line in worker.log.splitlines()[1:])


def test_logging_of_the_project_wins(fleet, first_hour):
    """It gives the queue's logger a handler of its own; the console takes only what no handler takes."""
    worker = fleet.worker("--burst")
    assert worker.exit_code() == 0
    assert worker.log.count("ValueError: no use; no retries are left") == 1
    assert " ERROR taskqueue:" not in worker.log
    assert worker.log.count("the card was refused (") == 1


def test_a_scheduler_says_whether_it_leads_and_what_it_does(fleet, engine):
    put(type_of(tasks.add), args=[1, 2], delay=3600)
    Task.objects.update(run_after=timezone.now())
    scheduler = fleet.scheduler(**DEFAULT)
    until(lambda: "done in" in scheduler.log, "its first summary")
    scheduler.send(signal.SIGTERM)
    assert scheduler.exit_code() == 0
    for part in (", scheduler ", "maintenance: only what Celery", " leads", "1 became due", " has stopped"):
        assert part in scheduler.log


def test_a_worker_that_stops_does_not_miss_its_own_scheduler(hire, caplog):
    worker = hire()
    worker.drain()
    for _ in range(3):
        worker.beat()
    assert not [message for message in caplog.messages if "No scheduler runs" in message]


# -- what a worker notices ---------------------------------------------------------------------------


def test_a_worker_gives_its_own_scheduler_time_to_take_over(hire, caplog):
    worker = hire(with_scheduler=True)
    worker.beat()
    assert caplog.messages == []
    worker.beat()
    assert len(caplog.messages) == 1


def test_a_worker_warns_once_that_no_scheduler_runs(hire, caplog):
    caplog.set_level(logging.INFO, "taskqueue")
    worker = hire()
    for _ in range(3):
        assert worker.beat()
    [warning] = caplog.messages
    assert warning.startswith("No scheduler runs: due tasks and retries are not queued")
    take_lead("me", 60)
    worker.beat()
    assert caplog.messages[1:] == ["a scheduler leads now"]
    resign("me")
    worker.beat()
    assert caplog.messages[2:] == [], "the next leader needs some seconds"
    worker.beat()
    assert caplog.messages[2:] == [warning]


def test_a_worker_does_not_look_for_a_scheduler_while_redis_is_away(hire, caplog):
    def gone() -> str:
        raise IndexUnavailable("gone")

    worker = hire()
    with worker.instead(why_unled=gone):
        assert worker.beat()
    assert caplog.messages == []
