"""What users do with a running fleet: they pause it, call it, and let its workers have schedulers."""

import signal
from datetime import timedelta

import pytest
from django.utils import timezone

from queue_app.diagnose.system import why_unled
from queue_app.models import Task
from queue_app.registry import type_of
from queue_app.services.control.pause import pause, resume
from tests.integration.app import tasks
from tests.integration.checkers import lost_or_doubled
from tests.integration.processes import index_comes_to_agree, lines
from tests.support.engine import put, put_many, status
from tests.support.waiting import until

pytestmark = pytest.mark.integration

NOTE, WORK = type_of(tasks.note), type_of(tasks.work)


def completed(ids) -> int:
    """How many of these have completed."""
    return Task.objects.filter(pk__in=ids, status="completed").count()


def test_a_pause_in_mid_run(fleet, history, log, tmp_path):
    """Most tasks wait for a file, so that they cannot all end before the pause."""
    gate = tmp_path / "gate"
    ids = put_many(20, WORK, args=[log, "x", 0.01])
    ids += put_many(180, type_of(tasks.hold), args=[log, "y", str(gate)])
    for _ in range(2):
        fleet.worker("--concurrency", "3")
    until(lambda: completed(ids) >= 20, "it is under way")
    until(lambda: len(lines(log)) > 40, "a task waits for the file")
    pause("default")
    gate.touch()
    # A claim that was under way may still be written. When nothing runs any more and both
    # workers have claimed again (for another queue), nothing may start.
    until(lambda: not Task.objects.filter(status="executing").exists(), "what runs ends")
    probe(log)
    starts = len(history.starts())
    for _ in range(3):
        probe(log)
    started = set(history.starts()[starts:]) & set(ids)
    assert started == set()
    waiting = Task.objects.filter(pk__in=ids, status="queued").count()
    assert 0 < waiting <= 180
    resume("default")
    until(lambda: completed(ids) == 200, "it goes on where it stopped")
    assert lost_or_doubled(history, ids) == []
    index_comes_to_agree()


def probe(log: str) -> None:
    """Let the fleet run something else, to see that it lives and claims."""
    ids = put_many(12, WORK, args=[log, "probe", 0.005], queue="probes")
    until(lambda: completed(ids) == 12, "another queue is served")


def test_a_task_that_another_process_enqueues_is_picked_up_at_once(fleet, log):
    """Woken by the push: the worker sleeps, and looks by itself only every ten seconds."""
    fleet.worker()
    first = put(NOTE, args=[log, "0"])
    until(lambda: completed([first]) == 1, "the worker runs")
    for number in range(1, 11):
        task_id = put(NOTE, args=[log, str(number)])
        until(lambda wanted=task_id: completed([wanted]) == 1, "it is picked up", seconds=5)


# -- workers with schedulers -----------------------------------------------------------------------------------------


def test_it_resigns_when_its_worker_stops(fleet, engine):
    worker = fleet.worker("--with-scheduler", TASKQUEUE__SCHEDULER__LEADER_SECONDS="600")
    until(lambda: not why_unled(), "it leads")
    worker.send(signal.SIGTERM)
    assert worker.exit_code() == 0
    assert why_unled(), "the lead would lapse after ten minutes only"


def test_the_workers_under_a_supervisor_have_schedulers(fleet, engine, log):
    fleet.worker("--with-scheduler", "--processes", "2", TASKQUEUE__SCHEDULER__DUE_SECONDS="0.1")
    delayed = put(NOTE, args=[log, "a"], run_after=timezone.now() + timedelta(hours=1))
    Task.objects.filter(pk=delayed).update(run_after=timezone.now())
    until(lambda: status(delayed) == "completed", "it became due and ran")
