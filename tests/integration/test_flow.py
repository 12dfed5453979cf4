"""What users do with a running fleet: capabilities, pauses, rollbacks, tasks that enqueue tasks."""

from collections import Counter

import pytest
from django.db import transaction

from queue_app.core.states import Status
from queue_app.index import get_index
from queue_app.models import Task, Worker
from queue_app.registry import type_of
from queue_app.services.control.pause import pause, resume
from tests.integration.app import tasks
from tests.integration.checkers import lost_or_doubled
from tests.integration.processes import eventually, index_comes_to_agree, lines
from tests.support.engine import put, put_many, status
from tests.support.engine import rolled_back as undone

pytestmark = pytest.mark.integration

NOTE, WORK = type_of(tasks.note), type_of(tasks.work)


def completed(ids) -> int:
    """How many of these have completed."""
    return Task.objects.filter(pk__in=ids, status="completed").count()


def test_each_worker_runs_what_it_can(fleet, history, log):
    plain, gpu = [], []
    for number in range(30):
        plain.append(put(NOTE, args=[log, f"plain {number}"]))
        gpu.append(put(NOTE, args=[log, f"gpu {number}"], capabilities=["gpu"]))
    both = put(NOTE, args=[log, "both"], capabilities=["gpu", "big"])
    fleet.worker()
    eventually(lambda: completed(plain) == 30, "what needs nothing is done")
    assert completed([*gpu, both]) == 0
    fleet.worker("--capabilities", "gpu")
    eventually(lambda: completed(gpu) == 30, "what needs one thing is done")
    able = set(Worker.objects.filter(capabilities=["gpu"]).values_list("id", flat=True))
    assert set(Task.objects.filter(pk__in=gpu).values_list("worker_id", flat=True)) == able
    assert status(both) == Status.QUEUED
    fleet.worker("--capabilities", "big,gpu")
    eventually(lambda: completed([both]) == 1, "what needs two things is done")
    assert lost_or_doubled(history, [*plain, *gpu, both]) == []
    index_comes_to_agree()


def test_a_pause_in_mid_run(fleet, history, log, tmp_path):
    """Most tasks wait for a file, so that they cannot all end before the pause."""
    gate = tmp_path / "gate"
    ids = put_many(20, WORK, args=[log, "x", 0.01])
    ids += put_many(180, type_of(tasks.hold), args=[log, "y", str(gate)])
    for _ in range(2):
        fleet.worker("--concurrency", "3")
    eventually(lambda: completed(ids) >= 20, "it is under way")
    eventually(lambda: len(lines(log)) > 40, "a task waits for the file")
    pause("default")
    gate.touch()
    # A claim that was under way may still be written. When nothing runs any more and both
    # workers have claimed again (for another queue), nothing may start.
    eventually(lambda: not Task.objects.filter(status="executing").exists(), "what runs ends")
    probe(log)
    starts = len(history.starts())
    for _ in range(3):
        probe(log)
    started = set(history.starts()[starts:]) & set(ids)
    assert started == set()
    waiting = Task.objects.filter(pk__in=ids, status="queued").count()
    assert 0 < waiting <= 180
    resume("default")
    eventually(lambda: completed(ids) == 200, "it goes on where it stopped")
    assert lost_or_doubled(history, ids) == []
    index_comes_to_agree()


def probe(log: str) -> None:
    """Let the fleet run something else, to see that it lives and claims."""
    ids = put_many(12, WORK, args=[log, "probe", 0.005], queue="probes")
    eventually(lambda: completed(ids) == 12, "another queue is served")


def test_what_is_rolled_back_was_never_there(fleet, history, log):
    fleet.worker()
    first = put(NOTE, args=[log, "before"])
    eventually(lambda: completed([first]) == 1, "the worker runs")
    never = []
    for number in range(20):
        with undone():
            never.append(put(NOTE, args=[log, f"never {number}"]))
            with transaction.atomic():
                never.extend(put_many(5, NOTE, args=[log, "never"]))
    with transaction.atomic():
        kept = put(NOTE, args=[log, "kept"])
        with undone():  # a savepoint
            never.append(put(NOTE, args=[log, "never"]))
    eventually(lambda: completed([kept]) == 1, "what was kept is run")
    assert lines(log) == ["before", "kept"]
    assert Task.objects.filter(pk__in=never).count() == 0
    assert {event.task_id for event in history.events()} == {first, kept}
    assert get_index().depth("default").total == 0


def test_tasks_that_enqueue_tasks(fleet, history, log):
    root = put(type_of(tasks.spawn), args=[log, 3, 3])
    fleet.worker("--processes", "2")
    eventually(lambda: Task.objects.filter(status="completed").count() == 40, "the whole tree is done")
    assert Counter(lines(log)) == {"depth 3": 1, "depth 2": 3, "depth 1": 9, "depth 0": 27}
    ids = list(Task.objects.values_list("id", flat=True))
    assert root in ids
    assert lost_or_doubled(history, ids) == []
    index_comes_to_agree()


def test_a_task_that_another_process_enqueues_is_picked_up_at_once(fleet, log):
    """Woken by the push: the worker sleeps, and looks by itself only every ten seconds."""
    fleet.worker()
    first = put(NOTE, args=[log, "0"])
    eventually(lambda: completed([first]) == 1, "the worker runs")
    for number in range(1, 11):
        task_id = put(NOTE, args=[log, str(number)])
        eventually(lambda wanted=task_id: completed([wanted]) == 1, "it is picked up", seconds=5)
