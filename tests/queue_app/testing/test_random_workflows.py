"""Random workflows of the public API with a worker and with the kit: both do what a model of ten lines says."""

import random
from contextlib import nullcontext
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, Phase, given, settings, strategies as st

from queue_app import signal
from queue_app.models import DeadLetter, StepResult, Task, Workflow as Row, WorkflowNode
from queue_app.services.lifecycle.actions import discard_open, replay_open
from queue_app.services.repair.rebuild import rebuild
from queue_app.services.upkeep.promote import make_due
from queue_app.testing import drain, freeze
from queue_app.workflows.read import WorkflowUpkeep
from tests.queue_app.workflows.test_graphs import by_task, judge
from tests.support import graphs
from tests.support.engine import assert_index_agrees
from tests.workers.stage import StillWorker

pytestmark = pytest.mark.slow

CERTAIN = [kind for kind in graphs.KINDS if kind != "lost"]
SETTINGS = {
    "deadline": None,
    "phases": [Phase.explicit, Phase.generate],
    "suppress_health_check": [HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
}


class Rows:
    """The engine, with a worker that the test drives."""

    time = nullcontext

    def clear(self):
        Task.objects.all().delete()
        Row.objects.all().delete()
        assert rebuild() is not None
        self.worker = StillWorker(concurrency=3)
        self.upkeep = WorkflowUpkeep()

    def work(self):
        self.worker.until_empty()
        Task.objects.filter(status="scheduled").update(run_after="2026-01-01T00:00Z")
        StepResult.objects.filter(kind="sleep", done_at=None).update(until="2026-01-01T00:00Z")
        make_due()
        self.worker.until_empty()
        assert self.upkeep.run_once() == 0, "nothing was forgotten"

    def letters(self, _flow):
        return list(DeadLetter.objects.open().values_list("task_id", "task_type"))

    def replay(self, task_id):
        replay_open(list(DeadLetter.objects.open().filter(task_id=task_id).values_list("id", flat=True)), by="ina")

    def discard(self, task_id):
        discard_open(list(DeadLetter.objects.open().filter(task_id=task_id).values_list("id", flat=True)), by="ina")

    def state(self, flow):
        return Row.objects.get(pk=flow.id).state

    def states(self, flow):
        return dict(WorkflowNode.objects.filter(task__workflow_id=flow.id).values_list("name", "task__status"))

    def waiting(self, flow):
        return Task.objects.filter(workflow_id=flow.id, status="blocked", attempt__gt=0).count()


class Kit(Rows):
    """The kit for tests of projects."""

    time = staticmethod(freeze)

    def __init__(self, backend):
        self.backend = backend

    def clear(self):
        self.backend.clear()

    def work(self):
        drain(to_the_end=True)

    def replay(self, task_id):
        self.backend.replay(task_id)

    def discard(self, task_id):
        self.backend.discard(task_id)


@pytest.fixture(params=["worker", "kit"])
def kit(request, engine):
    return Kit(request.getfixturevalue("task_queue")) if request.param == "kit" else Rows()


def replayed_or_undone(plan):
    """Return the plan without tasks that fail once, or without compensations.

    A workflow that was undone refuses to replay its dead letters; when that happens is up to the order of the tasks.
    """
    if plan.size % 2:
        layers = [replace(layer, kind="tell") if layer.kind == "once" else layer for layer in plan.layers]
    else:
        layers = [replace(layer, is_undone=False) for layer in plan.layers]
    return replace(plan, layers=tuple(layers))


@settings(max_examples=10, **SETTINGS)
@given(plan=graphs.plans(1, 40, CERTAIN, ("hold", "continue")).map(replayed_or_undone))
def test_a_workflow_ends_as_the_model_says(kit, tmp_path, plan):
    log = tmp_path / "log"
    log.write_text("")
    kit.clear()
    with kit.time():
        flow = graphs.store(plan, str(log), "f")
        for _ in range(plan.size * 3 + 3):
            kit.work()
            for task_id, kind in kit.letters(flow):
                if kind.endswith("tell_after_failing"):
                    kit.replay(task_id)
                elif kind.endswith("fail_to_tell"):
                    kit.discard(task_id)
            for _ in range(kit.waiting(flow)):
                signal(flow.id, "go")
            if kit.state(flow) not in {"running", "compensating"}:
                break
    wanted, found = graphs.expected(plan, "f"), kit.states(flow)
    assert {name: found[name] for name in wanted.nodes} == wanted.nodes
    assert kit.state(flow) == wanted.state or not wanted.state
    graphs.judge_log(str(log), wanted.with_result)


@settings(max_examples=12, **SETTINGS)
@given(
    plan=graphs.plans(1, 40),
    commands=st.lists(st.sampled_from(graphs.COMMANDS), max_size=15),
    chance=st.integers(0, 999),
)
def test_whatever_staff_do_a_workflow_keeps_its_promises(engine, history, tmp_path, plan, commands, chance):
    log, draw, rows = tmp_path / "log", random.Random(chance), Rows()
    log.write_text("")
    rows.clear()
    flow = graphs.store(plan, str(log), "f")
    for command in commands:
        for _ in range(draw.randint(0, 3)):
            rows.worker.run_once()
            rows.worker.pool.finish(draw.randint(0, 2))
        graphs.act(flow.id, command, draw)
        assert rows.upkeep.run_once() == 0, "nothing was forgotten"
    graphs.act(flow.id, "resume", draw)
    for _ in range(plan.size * 3 + 3):
        rows.work()
        if rows.state(flow) not in {"running", "compensating"}:
            break
        if not (graphs.act(flow.id, "discard", draw) or rows.waiting(flow)):
            graphs.act(flow.id, "cancel", draw)
        graphs.act(flow.id, "signal", draw)
    judge(flow.id, by_task(history))
    graphs.judge_log(str(log))
    assert_index_agrees()
