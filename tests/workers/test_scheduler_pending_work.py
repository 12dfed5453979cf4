"""For each job with questions: every state in which it has work must give a true answer."""

import os
import subprocess
import uuid
from collections.abc import Callable
from datetime import timedelta
from typing import NamedTuple
from unittest import mock

import pytest
from django.db import connection
from django.utils import timezone

from queue_app.adaptive.adapt import adapt_limits
from queue_app.core.process import process_identity
from queue_app.models import Limit, Queue, RuntimeSettings, Schedule, Task, Worker, Workflow
from queue_app.models.operation import OperationKind
from queue_app.schedules.edit import create_schedule
from queue_app.schedules.tick import run_due
from queue_app.services.control.pause import pause, pause_everything, pause_key, pause_type, resume_due
from queue_app.services.operations.request import Action, start_operation
from queue_app.services.operations.run import run_operations
from queue_app.services.read.task_filter import TaskFilter
from queue_app.services.repair.reap import mark_dead_locally, reap_orphans, reap_overdue
from queue_app.services.repair.rebuild import rebuild_if_needed
from queue_app.services.upkeep import jobs as module
from queue_app.services.upkeep.jobs import pending_work as ask
from queue_app.services.upkeep.promote import make_due
from queue_app.services.worker.registration import WorkerIdentity, register
from queue_app.sql import snapshot, upkeep, workers
from queue_app.what_if import operation
from queue_app.what_if.operation import start_simulation
from queue_app.workers.scheduler import Scheduler
from queue_app.workflows.read import cancel_overdue
from tests.support.engine import flush, put, put_many, take


def ago(seconds: float = 1):
    return timezone.now() - timedelta(seconds=seconds)


def enlist(scene, identity: str = "elsewhere", pid: int = 1):
    hand = scene.worker("a")
    who = WorkerIdentity(id=hand.id, name="w", host="h", pid=pid, process_identity=identity, version="1")
    register(who, hand.profile, concurrency=2, heartbeat_seconds=10)
    return hand


def busy(scene) -> uuid.UUID:
    """Let a worker run a task; return its id."""
    put_many(2)
    hand = enlist(scene)
    take(hand)
    return hand.id


# -- states ---------------------------------------------------------------------------------------------


def one_is_due(scene):
    put(run_after=ago(-3600))
    Task.objects.update(run_after=ago())


def a_schedule_is_due(_scene):
    create_schedule("hourly", {"task_type": "tests.workers.chores.echo", "args": [1], "every": 3600})
    Schedule.objects.update(due_at=ago())


def one_lost_its_process(scene, status="active"):
    child = subprocess.Popen(["sleep", "60"])
    hand = enlist(scene, process_identity(child.pid), child.pid)
    Worker.objects.filter(pk=hand.id).update(status=status)
    child.kill()
    child.wait()


def its_worker_ended(scene, status):
    Worker.objects.filter(pk=busy(scene)).update(status=status)


def its_worker_is_forgotten(scene):
    Worker.objects.filter(pk=busy(scene)).delete()


def one_is_overdue(scene):
    busy(scene)
    Task.objects.filter(status="executing").update(deadline=ago(11))


def a_pause_is_over(scene, stop, *name):
    stop(*name, resume_at=ago(-3600))
    for model in (Queue, Limit, RuntimeSettings):
        model.objects.filter(paused=True).update(resume_at=ago())


def an_operation_runs(scene):
    put_many(2)
    start_operation(Action(kind=OperationKind.CANCEL), TaskFilter(task_types=("a",)), by="ada")


def a_workflow_is_overdue(scene):
    Workflow.objects.create(name="late", created_at=ago(60), deadline=ago(1))


def adaptive(model, **fields):
    model.objects.all().delete()
    model(adaptive="gradient2", max_concurrent=9, **fields).save()


def a_simulation_runs(_scene):
    start_simulation({}, ago(3600), ago(), by="ada")


def start_a_process() -> int:
    with mock.patch.object(operation, "_spawn"):
        return operation.run_simulations()


class Case(NamedTuple):
    """A state in which ``act``, a statement of the job, finds work."""

    job: str
    state: Callable[[object], object]
    act: Callable[[], object]


CASES = {
    "due": Case("due", one_is_due, make_due),
    "gone": Case("reap", one_lost_its_process, mark_dead_locally),
    "gone while draining": Case("reap", lambda scene: one_lost_its_process(scene, "draining"), mark_dead_locally),
    "orphan of a dead one": Case("reap", lambda scene: its_worker_ended(scene, "dead"), reap_orphans),
    "orphan of one that left": Case("reap", lambda scene: its_worker_ended(scene, "stopped"), reap_orphans),
    "orphan without a worker": Case("reap", its_worker_is_forgotten, reap_orphans),
    "overdue": Case("overdue", one_is_overdue, reap_overdue),
    "paused queue": Case("resume", lambda scene: a_pause_is_over(scene, pause, "default"), resume_due),
    "paused type": Case("resume", lambda scene: a_pause_is_over(scene, pause_type, "a"), resume_due),
    "paused key": Case("resume", lambda scene: a_pause_is_over(scene, pause_key, "a"), resume_due),
    "paused everything": Case("resume", lambda scene: a_pause_is_over(scene, pause_everything), resume_due),
    "adaptive queue": Case("adapt", lambda scene: adaptive(Queue), adapt_limits),
    "adaptive type": Case("adapt", lambda scene: adaptive(Limit, scope="type", name="a"), adapt_limits),
    "adaptive everything": Case("adapt", lambda scene: adaptive(RuntimeSettings), adapt_limits),
    "simulation": Case("simulations", a_simulation_runs, start_a_process),
    "operation": Case("operations", an_operation_runs, run_operations),
    "workflow": Case("workflows", a_workflow_is_overdue, cancel_overdue),
    "schedule": Case("schedules", a_schedule_is_due, run_due),
    "lost index": Case("rebuild", flush, rebuild_if_needed),
    "other generation": Case("rebuild", lambda scene: snapshot.raise_generation(), rebuild_if_needed),
}
#: By these a question would ask for too little, and the cases must show it: question, what is changed, and to what.
LIVE = "('active', 'draining')"
TWINS = {
    "due": ("due", "statement_timestamp()", "statement_timestamp() - interval '1 hour'"),
    "schedule": ("schedules", "statement_timestamp()", "(statement_timestamp() - interval '1 hour')"),
    "gone": ("neighbours", LIVE, "('draining')"),
    "gone while draining": ("neighbours", LIVE, "('active')"),
    "orphan of a dead one": ("orphans", LIVE, "('active', 'dead')"),
    "orphan of one that left": ("orphans", LIVE, "('active', 'stopped')"),
    "orphan without a worker": ("orphans", "NOT IN (SELECT", "IN (SELECT"),
    "overdue": ("overdue", "< statement_timestamp()", "< statement_timestamp() - interval '1 hour'"),
    "paused queue": ("pauses", "queue_app_queue WHERE", "queue_app_queue WHERE NOT"),
    "paused type": ("pauses", "queue_app_limit WHERE", "queue_app_limit WHERE scope <> 'type' AND"),
    "paused key": ("pauses", "queue_app_limit WHERE", "queue_app_limit WHERE scope <> 'key' AND"),
    "paused everything": ("pauses", "queue_app_runtimesettings WHERE", "queue_app_runtimesettings WHERE NOT"),
    "adaptive queue": ("adaptive", "queue_app_queue WHERE", "queue_app_queue WHERE NOT"),
    "adaptive type": ("adaptive", "queue_app_limit WHERE", "queue_app_limit WHERE NOT"),
    "adaptive everything": ("adaptive", "queue_app_runtimesettings WHERE", "queue_app_runtimesettings WHERE NOT"),
    "operation": ("operations", "'running'", "'done'"),
    "workflow": ("workflows", "finished_at IS NULL", "finished_at IS NOT NULL"),
}  # fmt: skip


@pytest.fixture
def scene(engine):
    """An engine with the queue that is paused."""
    Queue.objects.get_or_create(name="default")
    return engine


def wants(job_name: str) -> bool:
    """Whether the answers make the scheduler call the job's action."""
    job = next(job for job in Scheduler().jobs if job.name == job_name)
    called: list[bool] = []
    job.action = lambda: called.append(True)
    job.run_once(ask(job.asks))
    return bool(called)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_the_query_finds_the_work_of_each_job(scene, case):
    assert not wants(case.job)
    case.state(scene)
    assert wants(case.job)
    assert case.act()


@pytest.mark.parametrize("name", TWINS)
def test_these_tests_find_a_question_with_a_missing_condition(scene, monkeypatch, name):
    question, condition, narrower = TWINS[name]
    twin = upkeep.questions()[question].replace(condition, narrower)
    assert twin != upkeep.questions()[question]
    CASES[name].state(scene)
    upkeep.statement.cache_clear()
    monkeypatch.setitem(upkeep.QUESTIONS, question, twin)
    try:
        assert not wants(CASES[name].job)
    finally:
        upkeep.statement.cache_clear()


@pytest.mark.parametrize("way", ["prepared", "behind a pooler", "logged"])
def test_the_answers_are_the_same_however_the_statements_go(scene, settings, monkeypatch, way):
    monkeypatch.setitem(connection.settings_dict, "DISABLE_SERVER_SIDE_CURSORS", way == "behind a pooler")
    settings.DEBUG = way == "logged"
    one_is_due(scene)
    one_is_overdue(scene)
    me = process_identity(os.getpid())
    enlist(scene, me, os.getpid())
    said = dict.fromkeys(("adaptive", "orphans", "pauses", "operations", "workflows"), False)
    said |= {"overdue": True, "generation": [snapshot.generation(), -1]}
    said["neighbours"] = [f"{os.getpid()} {me}"]
    said["schedules"] = None
    heartbeats = sorted(workers.heartbeats())
    said |= {"startable": False, "late": None, "overrun": None, "upkeep": []}
    assert len(heartbeats) == 2
    for _ in range(8):
        answers = ask(upkeep.questions())
        assert sorted(answers.pop("heartbeats")) == heartbeats
        assert answers.pop("due") == pytest.approx(answers.pop("recently_due"))
        assert answers == said


def test_without_process_identities_no_worker_counts_as_local(scene, monkeypatch):
    one_lost_its_process(scene)
    monkeypatch.setattr(module, "machine_identity", lambda: "")
    assert ask(["neighbours"]) == {"neighbours": []}


def test_every_job_that_asks_first_has_its_cases(scene):
    asking = {job.name: job.asks for job in Scheduler().jobs if job.asks and job.name != "watchdog"}  # it always looks
    assert {case.job for case in CASES.values()} == set(asking)
    assert {question for question, *_ in TWINS.values()} | {"generation", "heartbeats"} == {
        q for asks in asking.values() for q in asks
    }


def test_a_running_system_gives_no_job_a_reason(scene):
    """With tasks in every state, a pause without an end, and live workers, no job has work."""
    put(run_after=ago(-3600))
    busy(scene)
    pause("default")
    enlist(scene, process_identity(1), 1)
    Worker.objects.filter(pk=enlist(scene).id).update(status="stopped", last_heartbeat_at=ago(3600))
    assert [job.name for job in Scheduler().jobs if job.asks and wants(job.name)] == ["watchdog"]
