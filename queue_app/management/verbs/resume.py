"""Resume a queue, a task type, a key or everything."""

from argparse import ArgumentParser

from queue_app.management.verbs import Call, Needs, add_by_and_json
from queue_app.management.verbs.pause import add_target, target
from queue_app.services.control.pause import BY_KIND, EVERYTHING
from queue_app.sql.database import atomic

EXAMPLE = "taskqueue resume mail"
NEEDS = Needs.DATABASE


def add_arguments(parser: ArgumentParser) -> None:
    add_target(parser)
    add_by_and_json(parser)


def run(call: Call) -> int:
    """Resume, and record it in the audit log."""
    kind, name = target(call)
    names = [name] if name else []
    with atomic():
        BY_KIND[EVERYTHING if kind == "all" else kind][1](*names)
        call.record("resume", kind, names)
    everything = "everything is resumed; queues, types and keys with their own pause stay paused"
    return call.answer(f"{kind} {name} is resumed" if name else everything, {kind: name or True, "paused": False})
