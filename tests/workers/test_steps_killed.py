"""A worker is killed at each point of a task with steps: no step is lost, and an atomic one happens exactly once."""

import subprocess
import sys
import uuid
from collections import Counter

import pytest

from queue_app import signal
from queue_app.core.states import Status
from queue_app.models import AuditEntry, Signal, StepResult, TaskResult
from queue_app.registry import type_of
from queue_app.services.repair import reap
from queue_app.services.upkeep.promote import make_due
from tests.support.engine import assert_index_agrees, put, row
from tests.workers import step_tasks

STEPS = ("one", "two", "sleep", "wait for go", "three")
#: Where a process dies: before the step's function, before and after its record, after the commit, and at the end.
POINTS = [
    *(f"{place} {name}" for name in ("one", "two", "three") for place in ("before", "called", "committed")),
    *("called sleep", "committed sleep", "recorded wait for go", "ended "),
]


@pytest.mark.parametrize("early", [False, True], ids=["signal later", "signal before"])
@pytest.mark.parametrize("atomic", [True, False], ids=["atomic", "plain"])
def test_a_worker_killed_at_any_point_of_a_task_repeats_no_stored_step(engine, hire, process_env, atomic, early):
    points = [*POINTS, *(["recorded one", "recorded two", "recorded three"] if atomic else [])]
    if not early:  # the first attempt does not get beyond the signal
        points = [point for point in points if "three" not in point]
    tasks = {point: put(type_of(step_tasks.killable), parameters={"atomic": atomic}) for point in points}
    if early:
        for task_id in tasks.values():
            signal(task_id, "go", 7)
    workers = {point: uuid.uuid4() for point in points}  # each takes the oldest task
    pairs = [f"{worker}={point}" for point, worker in workers.items()]
    subprocess.run([sys.executable, "-m", "tests.workers.step_killed", *pairs], env=process_env, check=True)
    before = {point: stored(task_id) for point, task_id in tasks.items()}
    for worker_id in workers.values():
        reap.mark_dead(worker_id)
    finish_with(hire(), *(() if early else tasks.values()))
    for point, task_id in tasks.items():
        assert_exactly_once(point, task_id, before=before[point], atomic=atomic)
    assert_index_agrees()


def stored(task_id) -> list[str]:
    steps = StepResult.objects.filter(task_id=task_id, done_at__isnull=False).order_by("position")
    return list(steps.values_list("name", flat=True))


def finish_with(worker, *waiting) -> None:
    """Let another worker run the tasks to their end."""
    worker.until_empty()
    for task_id in waiting:
        assert row(task_id).status == Status.BLOCKED
        signal(task_id, "go", 7)
    for _ in range(3):
        make_due()
        worker.until_empty()


def assert_exactly_once(point, task_id, *, before, atomic) -> None:
    assert row(task_id).status == Status.COMPLETED, point
    assert TaskResult.objects.get(pk=task_id).value == ["one", "two", 7, "three"], point
    assert stored(task_id) == list(STEPS), point
    assert Signal.objects.filter(task_id=task_id, taken_at__isnull=False).count() == 1, point
    effects = Counter(AuditEntry.objects.filter(target_id=str(task_id)).values_list("target", flat=True))
    where, _, name = point.partition(" ")
    allowed = Counter(("one", "two", "three"))
    if where == "called" and not atomic and name in allowed:
        allowed[name] += 1  # its effect was there, and its record was not
    assert effects == allowed, point
    if where in {"called", "before"}:
        assert name not in before, point
