"""Start nothing new from a queue; what runs finishes."""

from __future__ import annotations

from argparse import ArgumentParser

from queue_app.management.verbs import OK, Call, Needs, add_by, add_json
from queue_app.rows.database import atomic
from queue_app.services import audit, pause

EXAMPLE = "taskqueue pause mail --reason 'the provider is down'"
NEEDS = Needs.SETTINGS | Needs.DATABASE


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("queue", metavar="QUEUE")
    parser.add_argument("--reason", default="", help="shown to whoever wonders why nothing starts")
    add_by(parser)
    add_json(parser)


def run(call: Call) -> int:
    """Pause it, and keep who did."""
    with atomic():
        queue = pause(call["queue"], by=call.by, reason=call["reason"])
        audit.record("pause", "queue", [queue.name], by=call.by, via=audit.COMMAND, reason=call["reason"])
    call.say(f"queue {queue.name} is paused by {queue.paused_by}")
    call.data({"queue": queue.name, "paused": True, "by": queue.paused_by, "reason": queue.paused_reason})
    return OK
