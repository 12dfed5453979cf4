"""Rebuild the index from the rows; claims wait meanwhile, no task is lost."""

from argparse import ArgumentParser
from dataclasses import asdict

from queue_app.management.verbs import REFUSED, Call, Needs, add_by_and_json
from queue_app.services.repair.rebuild import rebuild, rebuild_if_needed
from queue_app.sql.database import atomic

EXAMPLE = "taskqueue rebuild --if-needed"
NEEDS = Needs.DATABASE | Needs.INDEX


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--if-needed", action="store_true", help="only if the index is missing or outdated")
    parser.add_argument(
        "--adopt",
        action="store_true",
        help="take over the index of the database that this one replaces (a restored dump, an upgrade)",
    )
    add_by_and_json(parser)


def run(call: Call) -> int:
    """Rebuild, and report the numbers."""
    built = rebuild_if_needed() if call["if_needed"] else rebuild(adopt=call["adopt"])
    if built is None and call["if_needed"]:
        return call.answer("The index is ready or being rebuilt; nothing to do.", None)
    if built is None:
        call.err.write(
            "Another process is rebuilding the index, or Redis lost the new one; try again in a few seconds."
        )
        return REFUSED
    with atomic():
        call.record("rebuild", "index", after=asdict(built))
    return call.answer(
        f"generation {built.generation}: rows read: {built.tasks + built.leases}, leases restored: {built.leases},"
        f" entries pushed: {built.tasks}, {built.seconds:.2f} s",
        {**asdict(built), "rows": built.tasks + built.leases},
    )
