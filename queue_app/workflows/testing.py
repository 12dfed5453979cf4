"""Assert how a workflow stands in a test."""

from collections.abc import Mapping
from typing import Any

from queue_app.models import Workflow
from queue_app.workflows.sql import nodes


def assert_workflow(
    flow: Any,
    state: str,
    tasks: Mapping[str, str | list[str]] | None = None,
    *,
    backend: str = "",  # noqa: ARG001 - of calls from the time of a backend in memory
) -> None:
    """Assert the state of a workflow (or of its id) and, by their names, of some of its tasks.

    ``{"charge": "completed", "resize": ["completed", "failed"]}``: of several tasks with one name, list all states. A
    compensation is called "undo" and the name of what it undoes. The error lists all tasks. All backends of the queue
    have the same workflows, so ``backend`` says nothing.
    """
    row = Workflow.objects.get(pk=getattr(flow, "id", flow))
    each = {node.id: node for node in nodes(row.id)}
    names = {node.id: node.name or node.task_type.rpartition(".")[2] for node in each.values()}
    names |= {node.id: f"undo {names[node.compensates]}" for node in each.values() if node.compensates is not None}
    found = [(names[node.id], str(node.status)) for node in each.values()]
    wrong = [] if row.state == state else [f"it is {row.state}"]
    for name, wanted in (tasks or {}).items():
        states = sorted(status for own, status in found if own == name)
        if states != sorted([wanted] if isinstance(wanted, str) else wanted):
            wrong.append(f"{name} {', '.join(states) or 'is missing'}")
    if wrong:
        listed = "\n".join(f"  {name} {status}" for name, status in found)
        raise AssertionError(f"Expected the workflow to be {state}; {'; '.join(wrong)}. Its tasks:\n{listed}")
