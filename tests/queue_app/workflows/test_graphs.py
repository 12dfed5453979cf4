"""Random graphs under random ends and commands: what the rows and their history say afterwards."""

from __future__ import annotations

import random
import uuid
from collections import defaultdict

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from queue_app.core.graph import Graph, NewWorkflow, NodeExtra
from queue_app.core.ids import uuid7
from queue_app.core.records import NewTask
from queue_app.core.states import TERMINAL, Status
from queue_app.exceptions import InvalidTransition
from queue_app.models import DeadLetter, Task, TaskDependency, Workflow as Row, WorkflowNode
from queue_app.models.workflow import Condition, WorkflowState
from queue_app.services.enqueue.validate import check_task
from queue_app.services.lifecycle.actions import cancel_many, discard_open, replay_open
from queue_app.services.lifecycle.claim import give_back
from queue_app.services.lifecycle.finish import finish
from queue_app.services.repair.rebuild import rebuild
from queue_app.sql.workflow_store import compensation_text
from queue_app.workflows.read import WorkflowUpkeep
from queue_app.workflows.sql import holding
from queue_app.workflows.steer import cancel_workflow, pause_workflow, resume_workflow, retry_workflow, skip_task
from queue_app.workflows.store import add_nodes, enqueue_workflow
from tests.support.engine import assert_index_agrees, at_once, done, failed, take
from tests.support.history import Event

pytestmark = pytest.mark.slow
CONDITIONS = [Condition.HOLD, Condition.HOLD, Condition.HOLD, Condition.CANCEL, Condition.CONTINUE, Condition.FAILURE]


def graph_of(draw: random.Random, size: int) -> Graph:
    """Return a graph whose edges go from earlier to later tasks; every third task can be undone."""
    graph = Graph(rows=[check_task(NewTask(task_type="a", max_retries=0)) for _ in range(size)])
    for place in range(1, size):
        for before in draw.sample(range(place), min(place, draw.choice([0, 1, 1, 2, 3]))):
            graph.edges[graph.rows[place].id, graph.rows[before].id] = draw.choice(CONDITIONS).value
    for row in graph.rows[::3]:
        call = {"task_type": "a", "max_retries": 0, "parameters": {"undo": str(row.id)}}
        graph.extras[row.id] = NodeExtra(compensation=compensation_text(call))
    return graph


class Run:
    """One workflow, and two workers that run it badly."""

    def __init__(self, engine, draw: random.Random, size: int) -> None:
        self.draw = draw
        self.hands = [engine.worker(), engine.worker()]
        self.id = uuid7()
        policy = draw.choice(["hold", "hold", "cancel", "continue"])
        cap = draw.choice([None, None, None, 2])
        flow = NewWorkflow(id=self.id, name="random", on_failure=policy, max_concurrent=cap)
        enqueue_workflow(flow, graph_of(draw, size))
        self.upkeep = WorkflowUpkeep()

    def turn(self, *, calm: bool = False) -> bool:
        """Claim on both workers and end what they got, at the same time; return whether there was something."""
        got = [take(hand, self.draw.choice([1, 2, 5])) for hand in self.hands]
        if not calm and self.draw.random() < 0.2 and got[0]:
            give_back(got[0])
            got[0] = []
        self._add_to(got[1], calm=calm)
        outcomes = [[self._end(task, calm=calm) for task in tasks] for tasks in got]
        if ends := [lambda some=some: finish(some) for some in outcomes if some]:
            at_once(ends)
        assert self.upkeep.run_once() == 0, "nothing was forgotten"
        return any(got)

    def _end(self, task, *, calm: bool):
        luck = 1.0 if calm else self.draw.random()
        if luck < 0.15:
            return failed(task)
        return failed(task, retriable=False) if luck < 0.2 else done(task)

    def _add_to(self, tasks, *, calm: bool) -> None:
        row = Row.objects.get(pk=self.id)
        if tasks and not calm and self.draw.random() < 0.2 and row.cancel_requested_at is None and row.nodes < 60:
            more = Graph(rows=[check_task(NewTask(task_type="a", max_retries=0)) for _ in range(2)])
            if not WorkflowNode.objects.filter(task_id=tasks[0].id, compensates__isnull=False).exists():
                add_nodes(self.id, more, added_by=tasks[0].key)

    def command(self) -> None:
        """Let staff do something."""
        letters = list(DeadLetter.objects.open().values_list("id", flat=True))
        tasks = list(Task.objects.filter(workflow_id=self.id).values_list("id", flat=True))
        luck = self.draw.random()
        try:
            if luck < 0.25 and letters:
                replay_open(letters[:1], by="ina")
            elif luck < 0.4 and letters:
                discard_open(letters[-1:], by="ina")
            elif luck < 0.45:
                cancel_many([self.draw.choice(tasks)])
            elif luck < 0.5:
                retry_workflow(self.id, by="ina")
            elif luck < 0.6:
                pause_workflow(self.id, by="ina")
                got = [task for hand in self.hands for task in take(hand, 5)]
                assert not got, "nothing starts in a paused workflow"
                resume_workflow(self.id)
            elif luck < 0.62:
                cancel_workflow(self.id)
        except InvalidTransition:
            pass

    def end(self) -> None:
        """Let everything end: tasks complete from now on, and staff give up what is held."""
        for _ in range(400):
            if self.turn(calm=True):
                continue
            if Row.objects.get(pk=self.id).finished_at is not None:
                return
            held = holding(self.id, 1)
            if held and self.draw.random() < 0.5:
                assert skip_task(self.id, held[0].id, by="ina") == 1
                assert skip_task(self.id, held[0].id, by="ina") == 0, "said twice, it changes nothing"
            elif letters := list(DeadLetter.objects.open().values_list("id", flat=True)):
                discard_open(letters, by="ina")
            else:
                cancel_workflow(self.id)
        raise AssertionError("it never ends")


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32), size=st.integers(5, 40))
def test_a_workflow_keeps_its_promises_whatever_happens(engine, history, seed, size):
    Task.objects.all().delete()  # of an example that failed
    Row.objects.all().delete()
    assert rebuild() is not None
    draw = random.Random(seed)
    run = Run(engine, draw, size)
    for _ in range(draw.randint(1, 25)):
        run.turn()
        run.command()
    run.end()
    judge(run.id, by_task(history))
    assert_index_agrees()


def by_task(history) -> dict[uuid.UUID, list[Event]]:
    """Return the transitions of each task."""
    events = defaultdict(list)
    for event in history.events():
        events[event.task_id].append(event)
    return events


def judge(workflow_id: uuid.UUID, events: dict[uuid.UUID, list[Event]]) -> None:
    """Assert what must be true of a workflow that has ended."""
    tasks = dict(Task.objects.filter(workflow_id=workflow_id).values_list("id", "status"))
    assert set(tasks.values()) <= set(TERMINAL)
    undoes = dict(
        WorkflowNode.objects.filter(task_id__in=tasks, compensates__isnull=False).values_list("task_id", "compensates")
    )
    for after, before, condition in (
        TaskDependency.objects.filter(after_id__in=tasks)
        .exclude(condition=Condition.HOLD, met=True)
        .values_list("after_id", "before_id", "condition")
    ):
        starts = [event.seq for event in events[after] if event.after == "executing"]
        ends = [event.seq for event in events[before] if event.after in TERMINAL]
        completed = [event.seq for event in events[before] if event.after == "completed"]
        if starts:
            assert min(ends, default=starts[0]) < starts[0], "it began before what it waits for had ended"
            if condition in {Condition.HOLD, Condition.CANCEL}:
                assert min(completed, default=starts[0]) < starts[0], "what it waits for had not completed"
    for task_id in tasks:
        assert [event.after for event in events[task_id]].count("completed") <= 1
        opened = [event for event in events[task_id] if (event.before, event.after) == ("blocked", "queued")]
        closed = [event for event in events[task_id] if event.before is not None and event.after == "blocked"]
        assert len(opened) <= 1 + len(closed), "the ends of others queued it twice"
    judge_compensations(workflow_id, undoes, events)


def judge_compensations(workflow_id: uuid.UUID, undoes, events) -> None:
    """Assert that what had completed was undone in the reverse order, if and only if the workflow did not complete."""
    state = Row.objects.get(pk=workflow_id).state
    done_at = {
        task_id: [event.seq for event in found if event.after == "completed"][-1]
        for task_id, found in events.items()
        if any(event.after == "completed" for event in found)
    }
    undoable = set(
        WorkflowNode.objects.filter(
            task__workflow_id=workflow_id, compensation__isnull=False, task__status=Status.COMPLETED
        ).values_list("task_id", flat=True)
    )
    if state == WorkflowState.COMPLETED or not undoes:
        assert not undoes
        assert state != WorkflowState.COMPENSATED
        assert state == WorkflowState.COMPLETED or not undoable
        return
    assert set(undoes.values()) == undoable
    # One that a person gave up, and retried later, comes after the others.
    once = [task_id for task_id in done_at if all(event.before not in TERMINAL for event in events[task_id])]
    in_order = sorted((task_id for task_id in undoes if task_id in once), key=done_at.__getitem__)
    ended = dict(Task.objects.filter(workflow_id=workflow_id).values_list("id", "finished_at"))
    undone = [(ended[undoes[task_id]], undoes[task_id]) for task_id in in_order]
    began = min(Task.objects.filter(id__in=undoes).values_list("created_at", flat=True))
    if all(at < began for at, _ in undone):  # else staff let a task complete meanwhile, which is undone last
        assert undone == sorted(undone, reverse=True)
    if len(in_order) == len(undoes):
        assert state == WorkflowState.COMPENSATED
