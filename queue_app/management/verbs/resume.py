"""Let what is paused go on."""

from __future__ import annotations

from argparse import ArgumentParser

from queue_app.management.verbs import OK, Call, Needs, add_by, add_json
from queue_app.management.verbs._pausable import add_target, target
from queue_app.services.control import audit
from queue_app.services.control.pause import resume, resume_everything, resume_key, resume_type
from queue_app.sql.database import atomic

EXAMPLE = "taskqueue resume mail"
NEEDS = Needs.SETTINGS | Needs.DATABASE


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the options."""
    add_target(parser)
    add_by(parser)
    add_json(parser)


def run(call: Call) -> int:
    """Resume it, and keep who did."""
    kind, name = target(call)
    with atomic():
        if kind == "all":
            resume_everything()
        else:
            {"queue": resume, "type": resume_type, "key": resume_key}[kind](name)
        audit.record("resume", kind, [name] if name else [], by=call.by, via=audit.COMMAND)
    call.say(f"{kind} {name} goes on" if name else "everything goes on that is not paused by itself")
    call.data({kind: name or True, "paused": False})
    return OK
