"""Random workflows as data: drawn by Hypothesis, stored by the public API, and what must become of them."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from hypothesis import HealthCheck, Phase, given, seed, settings, strategies as st

from queue_app import Workflow, signal
from queue_app.core.graph import Node
from queue_app.exceptions import InvalidTransition
from queue_app.models import DeadLetter, Task
from queue_app.services.lifecycle.actions import cancel_many, discard_open, replay_open
from queue_app.workflows.steer import cancel_workflow, pause_workflow, resume_workflow, retry_workflow
from tests.integration.app import tasks

#: Number of tasks that a node of each kind is at the beginning.
SIZES: Final = {"tell": 1, "once": 1, "always": 1, "lost": 1, "grow": 1, "map": 2, "part": 2, "hear": 1, "rest": 1}
KINDS: Final = ["tell", "tell", "tell", *SIZES]
#: How a failure ends: after its replay it completes, or it is discarded.
MAPPED: Final = 3


@dataclass(frozen=True)
class Layer:
    """Nodes of one kind, each of which waits for some of the nodes before."""

    kind: str
    width: int
    parents: int  # of each node; -1: all of the layer before
    stride: int  # chooses them
    condition: str  # "" is the workflow's
    is_undone: bool


@dataclass(frozen=True)
class Plan:
    """One workflow."""

    policy: str
    cap: int | None
    layers: tuple[Layer, ...]

    def nodes(self) -> Iterator[tuple[Layer, list[int]]]:
        """Yield each node's layer and the numbers of the nodes that it waits for."""
        begin, number = 0, 0  # of the layer before, of this layer
        for layer in self.layers:
            for place in range(layer.width):
                if layer.parents < 0:
                    yield layer, list(range(begin, number))
                else:
                    found = (
                        {(number - 1 - (place + step) * layer.stride) % number for step in range(layer.parents)}
                        if number
                        else set()
                    )
                    yield layer, sorted(found)
            begin, number = number, number + layer.width

    @property
    def size(self) -> int:
        """The number of tasks at the beginning."""
        return sum(layer.width * SIZES[layer.kind] for layer in self.layers)


@st.composite
def plans(
    draw: Any,
    least: int,
    most: int,
    kinds: list[str] = KINDS,
    policies: tuple[str, ...] = ("hold", "cancel", "continue"),
) -> Plan:
    """Draw a workflow of ``least`` to ``most`` tasks."""
    left = draw(st.integers(least, most))
    layers: list[Layer] = []
    while left > 0:
        kind = draw(st.sampled_from(kinds)) if left > 1 else "tell"
        width = draw(st.integers(1, max(1, left // SIZES[kind] if draw(st.booleans()) else 1)))
        parents = draw(st.sampled_from([1, 1, 2, 3, -1, 0]))
        if parents < 0 and layers and width * layers[-1].width > 10 * most:
            parents = 2
        condition = draw(st.sampled_from(["", "", "", "", "cancel", "continue", "failure"]))
        layers.append(Layer(kind, width, parents, draw(st.integers(1, 7)), condition, draw(st.booleans())))
        left -= width * SIZES[kind]
    policy = draw(st.sampled_from(policies))
    return Plan(policy, draw(st.sampled_from([None, None, None, 2, 7])), tuple(layers))


def drawn(number: int, least: int, most: int, *, chance: int) -> list[Plan]:
    """Return so many plans, the same for the same chance."""
    found: list[Plan] = []

    @seed(chance)
    @settings(
        max_examples=number, database=None, phases=[Phase.generate], deadline=None, suppress_health_check=[*HealthCheck]
    )
    @given(plans(least, most))
    def collect(plan: Plan) -> None:
        found.append(plan)

    collect()
    return found[:number]


def store(plan: Plan, log: str, name: str) -> Workflow:
    """Enqueue the workflow of a plan; its tasks write to ``log``, and "WRONG" if they get a wrong result."""
    flow = Workflow(name, on_failure=plan.policy, max_concurrent=plan.cap)
    made: list[Node] = []
    expected: list[Any] = []
    for number, (layer, parents) in enumerate(plan.nodes()):
        waits = [_wait(made[before], layer.condition) for before in parents]
        given_to: tuple[Any, ...] = ()
        if parents and layer.kind in {"tell", "rest", "hear"}:
            before = parents[-1]
            given_to = (made[before].result, expected[before])
        node, result = MAKERS[layer.kind](flow, log, f"{name}.{number}", waits, given_to, layer.is_undone)
        made.append(node)
        expected.append(result)
    flow.enqueue()
    return flow


def _wait(node: Node, condition: str) -> Any:
    return {"": node, "cancel": node.or_cancel, "continue": node.even_if_failed, "failure": node.if_failed}[condition]


def _plain(task: Any) -> Callable[..., tuple[Node, Any]]:
    def make(flow: Workflow, log: str, text: str, after: Any, given_to: Any, is_undone: bool) -> tuple[Node, Any]:
        compensate = tasks.undo_told if is_undone else None
        return flow.add_call(task, (log, text, *given_to), after=after, compensate=compensate, name=text), text

    return make


def _map(flow: Workflow, log: str, text: str, after: Any, _given: Any, _is_undone: bool) -> tuple[Node, Any]:
    source = flow.add_call(tasks.items, (log, text, MAPPED), after=after, name=text)
    return flow.map(tasks.double, over=source.result), [2 * number for number in range(MAPPED)]


def _part(flow: Workflow, log: str, text: str, after: Any, _given: Any, is_undone: bool) -> tuple[Node, Any]:
    part = Workflow(text)
    first, told = _plain(tasks.tell)(part, log, f"{text}/0", (), (), is_undone)
    _plain(tasks.tell)(part, log, f"{text}/1", [first], (first.result, told), is_undone)
    return flow.add(part, after=after), f"{text}/1"


MAKERS: Final[dict[str, Callable[..., tuple[Node, Any]]]] = {
    "tell": _plain(tasks.tell), "once": _plain(tasks.tell_after_failing), "always": _plain(tasks.fail_to_tell),
    "lost": _plain(tasks.refuse_to_tell), "grow": _plain(tasks.tell_and_grow), "hear": _plain(tasks.hear_and_tell),
    "rest": _plain(tasks.rest_and_tell), "map": _map, "part": _part,
}  # fmt: skip


def judge_log(log: str, certain: frozenset[str] = frozenset()) -> None:
    """Assert that no task got a wrong result, and that those which are certain to get one got it."""
    lines = Path(log).read_text(encoding="utf-8").splitlines()
    wrong = [line for line in lines if line.startswith("WRONG")]
    wrong += [line for line in lines if line.removeprefix("WITHOUT ") in certain and line.startswith("WITHOUT ")]
    assert not wrong, wrong[:3]


@dataclass(frozen=True)
class Expected:
    """What must become of a workflow, and of its tasks by name."""

    state: str  # "" if that depends on who is faster
    nodes: dict[str, str]
    with_result: frozenset[str]  # tasks that get the result of another


def expected(plan: Plan, name: str) -> Expected:
    """Return what must become of the workflow of a plan.

    That is certain if dead letters are replayed when that helps, and else discarded, unless the policy is "cancel" or
    there are nodes of the kind "lost".
    """
    named: dict[str, str] = {}
    with_result: set[str] = set()
    ends: list[str] = []  # what those see that wait for a node
    edges: dict[int, list[str]] = {}  # conditions of what waits for a node
    undoable = False
    for number, (layer, parents) in enumerate(plan.nodes()):
        condition = layer.condition or plan.policy
        for before in parents:
            edges.setdefault(before, []).append(condition)
        is_skipped = any(_dooms(ends[before], condition) for before in parents)
        state = "cancelled" if is_skipped else {"once": "mended", "always": "dead_letter"}.get(layer.kind, "completed")
        named[f"{name}.{number}" + "/1" * (layer.kind == "part")] = "completed" if state == "mended" else state
        if parents and ends[parents[-1]] == "completed":
            with_result.add(f"{name}.{number}")
        undoable |= layer.is_undone and state in {"completed", "mended"} and layer.kind != "map"
        # What maps over nothing fails, if it begins at all.
        ends.append("failed" if is_skipped and layer.kind == "map" and plan.policy == "continue" else state)
    failed = {state for number, state in enumerate(ends) if not _is_excused(plan.policy, edges.get(number, []))}
    state = "completed"
    if failed & {"dead_letter", "failed"}:
        state = "compensated" if undoable else "failed"
    elif "mended" in failed and plan.policy == "continue":
        state = ""  # it may end before staff replay the dead letter
    return Expected(state, named, frozenset(with_result))


def _dooms(before: str, condition: str) -> bool:
    """Whether the end of a node means that what waits for it on this condition never runs."""
    return (
        condition
        in {
            "completed": {"failure"},
            "mended": {"cancel"},  # its failure came first
            "dead_letter": {"cancel", "hold"},
            "failed": {"cancel", "hold"},
            "cancelled": {"cancel", "hold", "failure"},
        }[before]
    )


def _is_excused(policy: str, conditions: list[str]) -> bool:
    return (bool(conditions) or policy == "continue") and not {"hold", "cancel"} & set(conditions)


COMMANDS: Final = [
    "replay",
    "replay",
    "discard",
    "signal",
    "signal",
    "cancel task",
    "retry",
    "pause",
    "resume",
    "cancel",
]


def act(flow_id: uuid.UUID, command: str, draw: random.Random) -> bool:
    """Let staff do something with a workflow, if it can be done; return whether it was."""
    own = Task.objects.filter(workflow_id=flow_id).values_list("id", flat=True)
    letters = list(DeadLetter.objects.open().filter(task_id__in=own).order_by("id").values_list("id", flat=True))
    some = letters[: draw.randint(1, len(letters) or 1)]
    with suppress(InvalidTransition):
        if command == "replay":
            return bool(replay_open(some, by="ina"))
        if command == "discard":
            return bool(discard_open(some, by="ina"))
        if command == "signal":
            signal(flow_id, "go")
        elif command == "cancel task":
            cancel_many([draw.choice(list(own))])
        elif command == "retry":
            return bool(retry_workflow(flow_id, by="ina"))
        elif command == "pause":
            pause_workflow(flow_id, by="ina")
        elif command == "resume":
            resume_workflow(flow_id)
        else:
            cancel_workflow(flow_id)
        return True
    return False
