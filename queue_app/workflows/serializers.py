"""What requests about workflows may hold, and what answers hold."""

from collections.abc import Mapping
from typing import Any, ClassVar, Final

from queue_app.api.answers import COUNT, FLAG, TEXT, Shape, answer, listed, maybe, named, page, record
from queue_app.api.representation import NEXT_BEFORE
from queue_app.api.serializers import kinds
from queue_app.api.serializers.base import Body, Field, ListOf
from queue_app.api.serializers.control import WithReason
from queue_app.api.serializers.kinds import TIME, UUID
from queue_app.api.serializers.tasks import FORMER_PAGE, IdPage, Submission
from queue_app.core.records import NewTask
from queue_app.exceptions import InvalidTaskData
from queue_app.models import Workflow
from queue_app.models.fields import NAME_LENGTH, TYPE_LENGTH
from queue_app.models.workflow import STANDINGS, WORKFLOW_NAME_LENGTH, Condition, OnFailure, WorkflowState
from queue_app.workflows.store import NewFlow, NewNode

MAX_NODES: Final = 1000
MAX_AT_ONCE: Final = 100_000
_CONDITIONS: Final = [condition.value for condition in Condition]
_AFTER: Final[dict[str, Any]] = {
    "description": "Names of the tasks that it waits for, or an object {name: condition}.",
    "oneOf": [
        {"type": "array", "items": {"type": "string"}},
        {"type": "object", "additionalProperties": {"type": "string", "enum": _CONDITIONS}},
    ],
}


def _after(value: Any, name: str) -> list[str] | dict[str, str]:
    if isinstance(value, list) and all(isinstance(each, str) for each in value):
        return value
    if isinstance(value, dict) and all(each in _CONDITIONS for each in value.values()):
        return value
    message = f"{name} must be a list of names, or an object of names with one of {', '.join(_CONDITIONS)}."
    raise InvalidTaskData(name, message, code="list_expected")


class NodeSubmission(Submission):
    """A task of a workflow; its parameters refer to results by ``{"$result": "name", "path": ["key"]}``."""

    name = kinds.text(NAME_LENGTH, required=True, help_text="Of its own in the workflow.")
    after = Field(_after, _AFTER)
    compensate = kinds.text(TYPE_LENGTH, help_text="Task type that undoes this one, with its parameters.")


class WorkflowSubmission(Body):
    example: ClassVar[Any] = {
        "name": "ship order 7",
        "tasks": [
            {"name": "pay", "task_type": "shop.tasks.charge", "parameters": {"order_id": 7}},
            {"name": "ship", "task_type": "shop.tasks.ship", "after": ["pay"],
             "parameters": {"address": {"$result": "pay", "path": ["address"]}}},
        ],
    }  # fmt: skip
    answers = ("Workflow",)
    name = kinds.text(WORKFLOW_NAME_LENGTH, required=True)
    tasks = ListOf(NodeSubmission(), MAX_NODES, least=1, required=True)
    on_failure = kinds.word([kind.value for kind in OnFailure])
    deadline = kinds.moment(allow_null=True)
    max_concurrent = kinds.whole(1, MAX_AT_ONCE, allow_null=True)


class Skip(WithReason):
    example: ClassVar[Any] = {"task_id": "0198c5d1-6f0e-7000-8000-000000000001", "reason": "the carrier cancelled it"}
    task_id = kinds.identifier(required=True)
    done = kinds.flag(default=False, help_text="A person has undone by hand what this compensation should have undone.")


class WorkflowQuery(IdPage):
    aliases: ClassVar[Mapping[str, str]] = FORMER_PAGE
    state = kinds.word([state.value for state in WorkflowState])
    standing = kinds.word(list(STANDINGS), help_text="open: not ended; held by a failed task; paused.")


def new_flow(values: Mapping[str, Any], user: str) -> NewFlow:
    """Return the workflow of a submission."""
    nodes = []
    for task in values["tasks"]:
        own = {name: task.pop(name) for name in ("name", "after", "compensate") if name in task}
        nodes.append(NewNode(task=NewTask(user=user, **task), **own))
    options = {name: values[name] for name in ("on_failure", "deadline", "max_concurrent") if name in values}
    return NewFlow(name=values["name"], nodes=nodes, user=user, **options)


# Answers.

WORKFLOW: Final = Shape(
    Workflow, "id", "name", "user", "state", "on_failure", "nodes", "max_concurrent", "created_at", "deadline",
    "held_at", "finished_at", "cancel_requested_at", "cancel_reason", "paused", "paused_at", "paused_by",
    "paused_reason", **dict.fromkeys(("cancel_reason", "paused_by", "paused_reason"), maybe(TEXT)),
)  # fmt: skip
#: The completed tasks that stay as they are, because what undoes them was given up. Only staff see why.
_GAPS: Final = listed(record({"task_id": UUID, "name": TEXT, "reason": TEXT}, optional=("reason",)))
_WORKFLOW: Final = WORKFLOW.schemas | {"gaps": _GAPS}
answer("Workflow", _WORKFLOW)
_GROUP: Final = answer(
    "WorkflowGroup",
    {"number": COUNT, "name": TEXT, "task_type": TEXT, "tasks": COUNT, "task_id": maybe(UUID), "states": named(COUNT),
     "after": named(TEXT), "compensation": FLAG, "critical": FLAG, "started_at": maybe(TIME),
     "finished_at": maybe(TIME)},
)  # fmt: skip
answer("WorkflowGraph", {"tasks": COUNT, "edges": COUNT, "groups": listed(_GROUP), "holding": listed(UUID)})
answer("SteeredWorkflow", _WORKFLOW | {"changed": COUNT})
answer("SubmittedWorkflow", _WORKFLOW | {"tasks": named(UUID)})
page("Workflow", next_before=NEXT_BEFORE)


def workflow(found: Workflow, user: Any) -> dict[str, Any]:
    """Return a workflow; only staff see who paused or cancelled it, and why."""
    hidden = () if user.is_staff else ("cancel_reason", "paused_by", "paused_reason")
    shown = ("task_id", "name", "reason") if user.is_staff else ("task_id", "name")
    gaps = [{key: gap[key] for key in shown} for gap in found.gaps]
    return WORKFLOW(found) | dict.fromkeys(hidden) | {"gaps": gaps}
