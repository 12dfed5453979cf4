"""Cancel tasks: waiting tasks end at once, running tasks are asked to stop."""

import uuid
from argparse import ArgumentParser

from queue_app.exceptions import TaskQueueError
from queue_app.management.verbs import OK, REFUSED, Call, Needs, add_by_and_json
from queue_app.services import cancel
from queue_app.sql.database import atomic

EXAMPLE = "taskqueue cancel 0198c5d1-6f0e-7000-8000-000000000001"
NEEDS = Needs.DATABASE


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("ids", nargs="+", type=uuid.UUID, metavar="ID", help="ids of tasks")
    add_by_and_json(parser)


def run(call: Call) -> int:
    """Cancel each task; an error does not stop the others."""
    results: list[dict[str, str]] = []
    for task_id in call["ids"]:
        try:
            with atomic():
                status = cancel(task_id)
                call.record("cancel", "task", [task_id])
        except TaskQueueError as error:
            results.append({"task_id": str(task_id), "error": error.code})
            call.err.write(f"{task_id}: {error}")
        else:
            results.append({"task_id": str(task_id), "status": status.value})
            call.write(f"{task_id}: {'asked to stop' if status == 'executing' else status.value}")
    call.write_json(results)
    return REFUSED if any("error" in item for item in results) else OK
