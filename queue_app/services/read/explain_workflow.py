"""Why a blocked task of a workflow is not queued: what it waits for, a pause of the workflow, or its cap."""

from collections.abc import Iterator
from typing import Final

from queue_app.core.explanation import Reason
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
        by = f" by {flow.paused_by}" if named and flow.paused_by else ""
        why = f": {flow.paused_reason}" if named and flow.paused_reason else ""
        yield Reason("workflow_paused", f"Its workflow {flow.name} is paused{by}{why}.", details={"id": str(flow.pk)})
    parents = rows.waits_for(task.id, NAMED + 1)
    if parents:
        texts = [
            f"{name or task_type.rpartition('.')[2]} ({status.replace('_', ' ')})"
            for _id, task_type, name, status, _condition in parents[:NAMED]
        ]
        texts += ["others"] if len(parents) > NAMED else []
        said = " and ".join([", ".join(texts[:-1]), texts[-1]]) if len(texts) > 1 else texts[0]
        details = {"tasks": [str(parent[0]) for parent in parents[:NAMED]]}
        yield Reason("waits_for_tasks", f"It waits for {said}.", details=details)
    elif flow is not None and not flow.paused and flow.max_concurrent is not None:
        text = f"Its workflow may have only {flow.max_concurrent} tasks queued or running at the same time."
        yield Reason("workflow_limit", text, details={"limit": flow.max_concurrent})
