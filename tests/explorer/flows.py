"""Transitions of workflows: two parents that end, a child that waits for both, and commands on the whole.

``parents``: ``x`` and ``y`` execute, and ``z`` waits for both. ``held``: ``x`` is a dead letter, ``z`` waits for it,
and ``y`` is queued beside them. ``undoing``: ``x`` had completed when the workflow was cancelled, and what undoes it
executes. ``undo_held``: both parents had completed; what undoes one of them failed without a dead letter and holds the
workflow, and what undoes the other waits. Every task can be undone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from queue_app.core.graph import Graph, NewWorkflow, NodeExtra
from queue_app.core.ids import uuid7
from queue_app.core.records import NewTask
from queue_app.core.states import TERMINAL
from queue_app.exceptions import AttemptOver, InvalidTransition, InvalidWorkflow
from queue_app.models import DeadLetter, Task, TaskDependency, Workflow as Row, WorkflowNode
from queue_app.services.enqueue.validate import check_task
from queue_app.services.lifecycle.actions import discard_open
from queue_app.services.lifecycle.claim import claim, recover
from queue_app.services.lifecycle.finish import finish
from queue_app.services.repair import reap
from queue_app.sql.workflow_store import compensation_text
from queue_app.workflows.read import WorkflowUpkeep
from queue_app.workflows.sql import holding
from queue_app.workflows.steer import (
    cancel_workflow,
    pause_workflow,
    resume_workflow,
    retry_workflow,
    skip_task,
    stop_undoing,
)
from queue_app.workflows.store import add_nodes, enqueue_workflow
from tests.support.engine import done, failed

STATES: Final = ("parents", "held", "undoing", "undo_held")


def make(world: Any, state: str) -> None:
    """Store the workflow of a state."""
    graph = Graph()
    retries = 0 if state == "held" else 3
    graph.rows = [check_task(NewTask(task_type="a", max_retries=retries)) for _ in range(3)]
    world.x, world.y, child = (each.id for each in graph.rows)
    undo = compensation_text({"task_type": "a", "max_retries": 3, "parameters": {"undo": True}})
    graph.extras = {row.id: NodeExtra(compensation=undo) for row in graph.rows}
    parents = [world.x] if state == "held" else [world.x, world.y]
    graph.edges = {(child, parent): "hold" for parent in parents}
    enqueue_workflow(NewWorkflow(id=uuid7(), name="met"), graph)
    hand = world.hands[0]
    world.held = sorted(claim(hand.profile, hand.id, len(parents)), key=lambda task: task.id)
    if state == "held":
        finish([failed(world.held.pop())])
    elif state == "undoing":
        finish([done(world.held[0])])
        cancel_workflow(_flow())
        finish([failed(world.held[1], retriable=False)])  # it was asked to stop
        world.held = claim(hand.profile, hand.id, 1)
    elif state == "undo_held":
        finish([done(world.held[0])])
        finish([done(world.held[1])])
        cancel_workflow(_flow())
        finish([failed(task, retriable=False) for task in claim(hand.profile, hand.id, 1)])


def _flow() -> Any:
    return Row.objects.values_list("id", flat=True).get()


def _add(world: Any, number: int) -> bool:
    """Let the parent add a task; return false if it had ended."""
    graph = Graph(rows=[check_task(NewTask(task_type="a"))])
    world.added = (world.held[number].id, graph.rows[0].id)
    try:
        add_nodes(_flow(), graph, added_by=world.held[number].key)
    except (AttemptOver, InvalidWorkflow):
        return False
    return True


def _add_broken(world: Any, _value: Any, _error: BaseException | None) -> Iterator[str]:
    """An attempt that has lost its task adds nothing."""
    parent, added = world.added
    stored = [event.seq for event in world.history.events(added)][:1]
    ended = [event.seq for event in world.history.events(parent) if event.before == "executing"][:1]
    if stored and ended and ended < stored:
        yield "an attempt that had ended added a task"


def _cancel_broken(world: Any, _value: Any, error: BaseException | None) -> Iterator[str]:
    flow = Row.objects.get()
    ran_again = any(event.before in TERMINAL and event.after == "queued" for event in world.history.events())
    if error is None and flow.cancel_requested_at is None and flow.finished_at is None and not ran_again:
        yield "a cancel was acknowledged, and the workflow goes on"
    if isinstance(error, InvalidTransition) and flow.finished_at is None:
        yield f"a cancel was refused ({error}), and the workflow has not ended"


def _pause(_world: Any, _number: int) -> None:
    pause_workflow(_flow(), by="ina")
    started = set(Task.objects.filter(status="executing").values_list("id", flat=True))
    paused = Row.objects.filter(paused=True).values("id")  # another actor may have resumed it
    waiting = Task.objects.filter(status__in=["queued", "scheduled"], workflow_id__in=paused)
    assert not waiting.exists(), "a pause was acknowledged, and a task of the workflow can start"
    assert set(Task.objects.filter(status="executing").values_list("id", flat=True)) <= started
    resume_workflow(_flow())


def _skip() -> None:
    """Skip what holds the workflow, twice; the second time changes nothing."""
    for held in holding(_flow(), 1):
        skip_task(_flow(), held.id, by="ina")
        assert skip_task(_flow(), held.id, by="ina") == 0 or Task.objects.get(pk=held.id).status == "completed"


def go_on(*, is_late: bool) -> int:
    """Do what the scheduler and, late, the staff do; return how many tasks the sweep had to queue."""
    for flow in Row.objects.filter(paused=True):  # by an actor that died before it resumed it
        resume_workflow(flow.id)
    if is_late:
        for flow in Row.objects.filter(state="compensating"):
            for held in holding(flow.id, 1):
                skip_task(flow.id, held.id, by="ina")
        discard_open(list(DeadLetter.objects.open().values_list("id", flat=True)), by="ina")
    return WorkflowUpkeep().run_once()


def broken(world: Any) -> Iterator[str]:
    """Yield what the history says against the workflow once all has ended."""
    if world.forgotten:
        yield f"the sweep found {world.forgotten} forgotten tasks"
    for flow in Row.objects.filter(finished_at=None):
        yield f"the workflow has not ended: it is {flow.state}"
    for after, before in TaskDependency.objects.exclude(met=True).values_list("after_id", "before_id"):
        starts = [event.seq for event in world.history.events(after) if event.after == "executing"]
        ends = [event.seq for event in world.history.events(before) if event.after == "completed"]
        if starts and not (ends and ends[0] < starts[0]):
            yield f"{world.name_of(after)} started before {world.name_of(before)} had completed"
    yield from _undone(world)
    for task_id in Task.objects.filter(workflow_id__isnull=False).values_list("id", flat=True):
        events = world.history.events(task_id)
        completed = [event for event in events if event.after == "completed"]
        opened = [event for event in events if (event.before, event.after) == ("blocked", "queued")]
        paused = [event for event in events if (event.before, event.after) == ("queued", "blocked")]
        if len(completed) > 1:
            yield f"{world.name_of(task_id)} completed {len(completed)} times"
        if len(opened) > 1 + len(paused):
            yield f"{world.name_of(task_id)} was queued {len(opened)} times by ends of others"


def _undone(world: Any) -> Iterator[str]:
    """Yield what was undone twice, or without reason, or was not."""
    flow = Row.objects.get()
    for node in WorkflowNode.objects.filter(compensates__isnull=False, closed="").exclude(task__status="completed"):
        if flow.finished_at is not None:
            yield f"what undoes {world.name_of(node.compensates)} was given up, and no person said so"
    undone = list(WorkflowNode.objects.filter(compensates__isnull=False).values_list("compensates", flat=True))
    completed = Task.objects.filter(node__compensation__isnull=False, status="completed").values_list("id", flat=True)
    if len(undone) != len(set(undone)):
        yield "a task was undone twice"
    if flow.finished_at is not None and set(undone) != (set() if flow.state == "completed" else set(completed)):
        yield f"the workflow is {flow.state}; completed: {len(completed)} tasks, undone: {len(undone)}"


#: Name -> what it does, in which states, and what it promises.
FLOWS: Final[dict[str, tuple[Callable[[Any, int], Any], tuple[str, ...], Any]]] = {
    "end_parent": (lambda world, number: finish([done(world.held[number])]), ("parents",), None),
    "end_undo": (lambda world, _: finish([done(world.held[0])]), ("undoing",), None),
    "fail_undo": (lambda world, _: finish([failed(world.held[0])]), ("undoing",), None),
    "fail_parent": (lambda world, number: finish([failed(world.held[number])]), ("parents",), None),
    "add_task": (_add, ("parents",), _add_broken),
    "fail_first": (lambda world, _: finish([failed(world.held[0])]), ("parents",), None),
    "lose_first": (lambda world, _: reap.mark_dead(world.hands[0].id), ("parents",), None),
    "recover_first": (lambda world, _: recover(world.hands[0].id, []), ("parents",), None),
    "cancel_flow": (lambda _world, _: cancel_workflow(_flow()), STATES, _cancel_broken),
    "pause_flow": (_pause, STATES, None),
    "retry_flow": (lambda _world, _: retry_workflow(_flow(), by="ina"), ("held", "undoing"), None),
    "skip_undo": (lambda _world, _: _skip(), ("undo_held",), None),
    "retry_undo": (lambda _world, _: retry_workflow(_flow(), by="ina"), ("undo_held",), None),
    "lose_undo": (lambda world, _: reap.mark_dead(world.hands[0].id), ("undoing",), None),
    "stop_undoing": (
        lambda _world, _: stop_undoing(_flow(), by="ina", reason="because"),
        ("undoing", "undo_held"),
        None,
    ),
    "sweep": (lambda _world, _: WorkflowUpkeep().run_once(), STATES, None),
}
