"""Build the index anew from the rows; claims wait meanwhile, nothing is lost."""

from __future__ import annotations

from argparse import ArgumentParser
from dataclasses import asdict

from queue_app.management.verbs import OK, REFUSED, Call, Needs, add_by, add_json
from queue_app.services.control import audit
from queue_app.services.repair.rebuild import rebuild, rebuild_if_needed
from queue_app.sql.database import atomic

EXAMPLE = "taskqueue rebuild --if-needed"
NEEDS = Needs.SETTINGS | Needs.DATABASE | Needs.INDEX


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--if-needed", action="store_true", help="only when the index is missing or another's")
    add_by(parser)
    add_json(parser)


def run(call: Call) -> int:
    """Rebuild, and report what was written."""
    built = rebuild_if_needed() if call["if_needed"] else rebuild()
    if built is None and call["if_needed"]:
        call.say("The index is ready, or is being rebuilt; nothing was done.")
        call.data(None)
        return OK
    if built is None:
        call.err.write("Somebody else is rebuilding the index, or it was lost on the way; try again in some seconds.")
        return REFUSED
    with atomic():
        audit.record("rebuild", "index", by=call.by, via=audit.COMMAND, after=asdict(built))
    call.say(
        f"generation {built.generation}: {built.tasks + built.leases} rows read, {built.leases} leases restored,"
        f" {built.tasks} entries pushed, {built.seconds:.2f} s"
    )
    call.data({**asdict(built), "rows": built.tasks + built.leases})
    return OK
