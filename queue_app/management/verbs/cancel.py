"""Cancel tasks, by id or filter: waiting tasks end at once, running tasks are asked to stop."""

from argparse import ArgumentParser

from queue_app.exceptions import TaskQueueError
from queue_app.management.verbs import OK, REFUSED, Call, Needs, add_by_and_json
from queue_app.management.verbs._operations import add_options, add_task_filter, run_on_tasks
from queue_app.models.operation import OperationKind
from queue_app.services import cancel
from queue_app.services.operations.request import Action
from queue_app.services.read.task_filter import TaskFilter
from queue_app.sql.database import atomic

EXAMPLE = "taskqueue cancel --type shop.tasks.report --since 2h --dry-run"
NEEDS = Needs.DATABASE


def add_arguments(parser: ArgumentParser) -> None:
    add_task_filter(parser)
    add_options(parser)
    add_by_and_json(parser)


def run(call: Call) -> int:
    """Cancel each of the named tasks at once, or start an operation on those of a filter."""
    names_tasks = TaskFilter.of(call.options).as_json().keys() == {"ids"}
    if names_tasks and not any(call[name] for name in ("all", "dry_run", "rate", "limit")):
        return _cancel_each(call)
    return run_on_tasks(call, Action(kind=OperationKind.CANCEL), "cancelled")


def _cancel_each(call: Call) -> int:
    """Cancel each task; an error does not stop the others."""
    results: list[dict[str, str]] = []
    for task_id in call["ids"]:
        try:
            with atomic():
                status = cancel(task_id)
                call.record("cancel", "task", [task_id], reason=call["reason"])
        except TaskQueueError as error:
            results.append({"task_id": str(task_id), "error": error.code})
            call.err.write(f"{task_id}: {error}")
        else:
            results.append({"task_id": str(task_id), "status": status.value})
            call.write(f"{task_id}: {'asked to stop' if status == 'executing' else status.value}")
    call.write_json(results)
    return REFUSED if any("error" in item for item in results) else OK
