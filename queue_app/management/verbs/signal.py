"""Send a signal to a task, such as an approval."""

import uuid
from argparse import ArgumentParser

from queue_app.management.verbs import Call, Needs, add_by_and_json
from queue_app.management.verbs._values import json_value
from queue_app.services.control import audit
from queue_app.services.lifecycle.steps import signal

EXAMPLE = "taskqueue signal 0198c5d1-6f0e-7000-8000-000000000001 approved --payload '{\"ok\": true}'"
NEEDS = Needs.DATABASE


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("id", type=uuid.UUID, metavar="ID", help="id of the task, or of the workflow")
    parser.add_argument("name", metavar="NAME", help="name of the signal")
    parser.add_argument("--payload", type=json_value, metavar="JSON", help="what the task gets; default: null")
    parser.add_argument("--reason", default="", metavar="TEXT", help="why; kept in the audit log")
    add_by_and_json(parser)


def run(call: Call) -> int:
    """Send the signal."""
    how = {"by": call.by, "via": audit.COMMAND, "reason": call["reason"]}
    sent = signal(call["id"], call["name"], call["payload"], **how)
    text = "the task continues" if sent.is_awaited else "kept until the task waits for it"
    return call.answer(f"{call['id']}: {text}", {"signal_id": sent.id, "awaited": sent.is_awaited})
