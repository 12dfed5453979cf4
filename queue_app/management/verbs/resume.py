"""Let a paused queue go on."""

from __future__ import annotations

from argparse import ArgumentParser

from queue_app.management.verbs import OK, Call, Needs, add_by, add_json
from queue_app.rows.database import atomic
from queue_app.services import audit, resume

EXAMPLE = "taskqueue resume mail"
NEEDS = Needs.SETTINGS | Needs.DATABASE


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("queue", metavar="QUEUE")
    add_by(parser)
    add_json(parser)


def run(call: Call) -> int:
    """Resume it, and keep who did."""
    with atomic():
        queue = resume(call["queue"])
        audit.record("resume", "queue", [queue.name], by=call.by, via=audit.COMMAND)
    call.say(f"queue {queue.name} goes on")
    call.data({"queue": queue.name, "paused": False})
    return OK
