"""Show the stack of a running task: where its thread, coroutine or process is."""

import time
import uuid
from argparse import ArgumentParser

from queue_app.management.verbs import OK, REFUSED, Call, Needs, add_by_and_json
from queue_app.models import Task
from queue_app.services.lifecycle import stacks
from queue_app.sql.database import alias, atomic

EXAMPLE = "taskqueue stack 0198c5d1-6f0e-7000-8000-000000000001"
NEEDS = Needs.DATABASE
#: Seconds between two looks for the answer.
POLL_SECONDS = 0.2


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("id", type=uuid.UUID, metavar="ID", help="id of a running task")
    parser.add_argument("--wait", type=float, default=20.0, metavar="SECONDS", help="for the answer (default: 20)")
    parser.add_argument("--reason", default="", metavar="TEXT", help="why; kept in the audit log")
    add_by_and_json(parser)


def run(call: Call) -> int:
    """Ask the worker, and print its answer."""
    with atomic():
        stacks.ask(call["id"])
        call.record("stack", "task", [call["id"]], reason=call["reason"])
    until = time.monotonic() + call["wait"]
    while (found := stacks.read(Task.objects.using(alias()).get(pk=call["id"]))) and not found.answered_at:
        if time.monotonic() > until:
            break
        time.sleep(POLL_SECONDS)
    text = found.text if found else "The attempt has ended."
    call.answer(text, {"task_id": call["id"], "answered": bool(found and found.answered_at), "stack": text})
    return OK if found and found.answered_at else REFUSED
