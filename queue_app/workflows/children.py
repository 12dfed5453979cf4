"""What ``context.run`` starts and waits for: a task, or a workflow."""

from time import time as wall_time
from typing import Any, Final

from django.tasks import task_backends
from django.tasks.base import TaskResultStatus

from queue_app.exceptions import TaskFailed
from queue_app.workflows import Workflow
from queue_app.workflows.builder import Part, WorkflowHandle, result_of

#: Longest pause between two looks at a child, in seconds.
MAX_PAUSE: Final = 30.0


def start(what: Any, args: Any, kwargs: Any) -> dict[str, Any]:
    """Enqueue a task, a workflow, a chain or a group; return what a later attempt needs to find it."""
    if not isinstance(what, Part):
        return {"task": what.enqueue(*args, **kwargs).id, "backend": what.backend, "at": wall_time()}
    if args or kwargs:
        raise TypeError("Give the arguments to the tasks of the workflow, chain or group, not to context.run().")
    flow = what if isinstance(what, Workflow) else Workflow("run")
    reference = result_of(flow._graph) if flow is what else flow.add(what).result  # noqa: SLF001 - of the builder
    handle = flow.enqueue()
    return {"workflow": str(handle), "backend": handle.backend, "result": reference.as_json(), "at": wall_time()}


def pause(child: dict[str, Any]) -> float:
    """Return how long to wait before the next look at a child: as long as it has run, within limits."""
    ran: float = wall_time() - child["at"]
    return min(max(1.0, ran), MAX_PAUSE)


def outcome(child: dict[str, Any]) -> dict[str, Any] | None:
    """Return the result or the error of what was started; ``None`` while it has not ended."""
    backend: Any = task_backends[child["backend"]]
    if "workflow" in child:
        stored = backend.workflow(WorkflowHandle.of(child["workflow"]))
        if not stored.has_ended:
            return None
        if stored.state != "completed":
            return {"failed": child["workflow"], "errors": [[f"the workflow is {stored.state}", ""]]}
        return {"value": stored.filled(child["result"])}
    found = backend.get_result(child["task"])
    if not found.is_finished:
        return None
    if found.status is TaskResultStatus.FAILED:
        errors = [[error.exception_class_path, error.traceback] for error in found.errors[-1:]]
        return {"failed": child["task"], "errors": errors}
    return {"value": found.return_value}


def value_of(found: dict[str, Any]) -> Any:
    """Return the result of a child; raise ``TaskFailed``."""
    if "failed" in found:
        raise TaskFailed(found["failed"], [(kind, traceback) for kind, traceback in found["errors"]])
    return found["value"]
