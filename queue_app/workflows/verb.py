"""List workflows, show one, cancel, pause, resume, retry or reprioritise it, skip a task, or stop undoing it."""

from argparse import ArgumentParser
from collections.abc import Callable, Mapping
from typing import Any, Final

from django.utils import timezone

from queue_app.core.ids import parse_id
from queue_app.exceptions import InvalidTaskData, WorkflowNotFound
from queue_app.management.verbs import Call, Needs, add_by_and_json
from queue_app.management.verbs._values import format_table
from queue_app.models import Workflow
from queue_app.models.workflow import STANDINGS, WorkflowState
from queue_app.services.control import audit
from queue_app.sql.database import alias, atomic
from queue_app.workflows import steer
from queue_app.workflows.read import TaskGroup, graph_of

EXAMPLE = "taskqueue workflow show 0198c5d1-6f0e-7000-8000-000000000001"
NEEDS = Needs.DATABASE
#: Workflows that ``list`` shows.
LISTED: Final = 50


def add_arguments(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add("action", choices=("list", "show", *_STEER))
    add("id", nargs="?", default="", help="id of the workflow; not for list")
    add("--state", help="list: only workflows in this state, or open, held or paused")
    add("--priority", help="reprioritise: critical, high, normal, low or background")
    add("--task", help="skip: id of the failed task that holds the workflow")
    add("--done", action="store_true", help="skip: a person has undone by hand what this compensation should undo")
    add("--reason", default="", metavar="TEXT", help="why; shown in the admin")
    add_by_and_json(parser)


def run(call: Call) -> int:
    """Carry the action out, and record it in the audit log."""
    if call["action"] == "list":
        return _list(call)
    if not call["id"]:
        raise InvalidTaskData("id", f"workflow {call['action']} needs the id of a workflow.", code="required")
    found = Workflow.objects.using(alias()).filter(pk=parse_id(call["id"])).first()
    if found is None:
        raise WorkflowNotFound(f"There is no workflow {call['id']}.")
    return _show(call, found) if call["action"] == "show" else _steer(call, found)


def _list(call: Call) -> int:
    state = call["state"]
    if state and state not in {*STANDINGS, *WorkflowState}:
        known = ", ".join([*STANDINGS, *WorkflowState])
        raise InvalidTaskData("state", f"--state must be one of {known}.", code="unknown_status")
    wanted = STANDINGS.get(state, {"state": state}) if state else {}
    flows = list(Workflow.objects.using(alias()).filter(**wanted).order_by("-id")[:LISTED])
    rows = [["ID", "NAME", "STATE", "TASKS", "ENQUEUED"]]
    rows += [
        [str(flow.pk), flow.name, _standing(flow), str(flow.nodes), f"{timezone.localtime(flow.created_at):%F %H:%M}"]
        for flow in flows
    ]
    text = "\n".join(format_table(rows)) if flows else "no workflows"
    return call.answer(text, [{"id": str(flow.pk), "name": flow.name, "state": flow.state} for flow in flows])


def _show(call: Call, flow: Workflow) -> int:
    graph = graph_of(flow.pk)
    names = {group.number: group.name for group in graph.groups}
    rows = [["TASK", "STATES", "WAITS FOR"], *(_row(group, names) for group in graph.groups)]
    lines = [f"{flow.name}: {_standing(flow)}, {graph.tasks} tasks", *format_table(rows)]
    gaps = [(f"{gap['name']} {gap['task_id']}", gap["reason"]) for gap in flow.gaps]
    lines += [f"not undone: {what}: {why}" if why else f"not undone: {what}" for what, why in gaps]
    lines += [f"held by {task.name} {task.id} ({task.status.replace('_', ' ')})" for task in graph.holding]
    facts = {
        "id": str(flow.pk), "name": flow.name, "state": flow.state, "tasks": graph.tasks,
        "holding": [str(task.id) for task in graph.holding], "gaps": flow.gaps,
        "groups": [{"name": group.name, "states": dict(group.counts)} for group in graph.groups],
    }  # fmt: skip
    return call.answer("\n".join(lines), facts)


def _row(group: TaskGroup, names: Mapping[int, str]) -> list[str]:
    states = ", ".join(f"{count} {state.replace('_', ' ')}" for state, count in sorted(group.counts.items()))
    return [group.name, states, ", ".join(names[number] for number in group.parents) or "-"]


def _standing(flow: Workflow) -> str:
    if flow.finished_at is None and flow.paused:
        return f"{flow.state}, paused"
    if flow.gaps:
        return f"{flow.state} with gaps"
    return f"{flow.state}, held" if flow.finished_at is None and flow.held_at else flow.state


def _steer(call: Call, flow: Workflow) -> int:
    action, given = call["action"], dict[str, Any]()
    if action == "skip":
        given = {"task_id": _needed(call, "task"), "done": call["done"]}
    elif action == "reprioritise":
        given = {"band": _needed(call, "priority")}
    with atomic():
        number = _STEER[action](flow.pk, **given, by=call.by, via=audit.COMMAND, reason=call["reason"])
    return call.answer(f"{action} {flow.name}: tasks changed: {number}", {"id": str(flow.pk), "changed": number})


def _needed(call: Call, option: str) -> str:
    if not call[option]:
        raise InvalidTaskData(option, f"workflow {call['action']} needs --{option}.", code="required")
    return str(call[option])


_STEER: Final[Mapping[str, Callable[..., int]]] = {
    "skip": steer.skip_task,
    "stop-undoing": steer.stop_undoing,
    "cancel": steer.cancel_workflow,
    "pause": steer.pause_workflow,
    "resume": steer.resume_workflow,
    "retry": steer.retry_workflow,
    "reprioritise": steer.reprioritise_workflow,
}
