"""Why a blocked task of a workflow is not queued: what it waits for, a pause of the workflow, or its cap."""

from collections.abc import Iterator
from typing import Final

from queue_app.core.explanation import Reason, all_of, because, by, status_name
from queue_app.core.sentence import say
from queue_app.models import Task, Workflow
from queue_app.sql import workflow_graph as rows
from queue_app.sql.database import alias

#: Tasks that a reason names.
NAMED: Final = 3


def in_workflow(task: Task, *, named: bool) -> Iterator[Reason]:
    """Yield the reasons; with ``named``, also who paused the workflow and why."""
    if task.workflow_id is None:
        return
    flow = Workflow.objects.using(alias()).filter(pk=task.workflow_id).first()
    if flow is not None and flow.paused:
        text = say(
            "Its workflow %(name)s is paused%(by)s%(why)s",
            name=flow.name, by=by(flow.paused_by if named else ""), why=because(flow.paused_reason if named else ""),
        )  # fmt: skip
        yield Reason("workflow_paused", text, details={"id": str(flow.pk)})
    parents = rows.waits_for(task.id, NAMED + 1)
    if parents:
        texts: list[str] = [
            say("%(task)s (%(status)s)", task=name or task_type.rpartition(".")[2], status=status_name(status))
            for _id, task_type, name, status, _condition in parents[:NAMED]
        ]
        texts += [say("others")] if len(parents) > NAMED else []
        details = {"tasks": [str(parent[0]) for parent in parents[:NAMED]]}
        yield Reason("waits_for_tasks", say("It waits for %(tasks)s.", tasks=all_of(texts)), details=details)
    elif flow is not None and not flow.paused and flow.max_concurrent is not None:
        text = say("Its workflow may have only %(n)s tasks queued or running at the same time.", n=flow.max_concurrent)
        yield Reason("workflow_limit", text, details={"limit": flow.max_concurrent})
