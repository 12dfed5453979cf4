"""Rebuild the index from the rows; claims wait meanwhile, no task is lost."""

import signal
import sys
import threading
from argparse import ArgumentParser
from collections.abc import Iterator
from contextlib import contextmanager
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


@contextmanager
def _unwound_by_sigterm() -> Iterator[None]:
    """Let SIGTERM raise in the block, so that another process can rebuild at once."""
    if threading.current_thread() is not threading.main_thread():  # only this one may set handlers
        yield
        return
    before = signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def run(call: Call) -> int:
    """Rebuild, and report the numbers."""
    with _unwound_by_sigterm():
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
