"""Queue tasks of dead letters again: one, several by filter, at a pace; stops when the first ones fail again."""

from __future__ import annotations

import time
import uuid
from argparse import ArgumentParser
from typing import Any

from queue_app.management.verbs import OK, REFUSED, USAGE, Call, Needs, add_by, add_json
from queue_app.management.verbs._values import instant
from queue_app.models import Operation
from queue_app.models.operation import OperationState
from queue_app.services.control import audit
from queue_app.services.operations.advance import advance
from queue_app.services.operations.request import (
    STOP_AFTER_FAILURES,
    ReplayOptions,
    check_options,
    get_operation,
    start_replay,
)
from queue_app.services.read.dead_letters import DeadLetterFilter, preview
from queue_app.sql.database import atomic

EXAMPLE = "taskqueue replay --reason retries_exhausted --queue mail --rate 5 --dry-run"
NEEDS = Needs.SETTINGS | Needs.DATABASE
#: Between two looks at an operation that is waited for, in seconds.
LOOK = 0.5


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("ids", nargs="*", type=uuid.UUID, metavar="ID", help="ids of dead letters; default: by filter")
    parser.add_argument("--reason", help="retries_exhausted, timeout or crash_loop")
    parser.add_argument("--type", dest="task_type", help="task type")
    parser.add_argument("--queue")
    parser.add_argument("--user", help="owner of the tasks")
    parser.add_argument("--error", metavar="CLASS", help="exception class, with or without its module")
    parser.add_argument("--text", help="somewhere in the error's message")
    parser.add_argument("--since", type=instant, metavar="TIME", help="died at or after this time")
    parser.add_argument("--all", action="store_true", help="all open dead letters; needed when nothing else is given")
    parser.add_argument("--dry-run", action="store_true", help="only tell how many they are, and the first")
    parser.add_argument("--rate", type=float, metavar="N", help="so many per second; default: as fast as it goes")
    parser.add_argument("--limit", type=int, metavar="N", help="at most so many, oldest first")
    parser.add_argument(
        "--stop-after",
        type=int,
        default=STOP_AFTER_FAILURES,
        metavar="K",
        help=f"the first K go alone, and all stops when these fail again; 0: never (default {STOP_AFTER_FAILURES})",
    )
    parser.add_argument("--why", default="", metavar="TEXT", help="kept with the operation")
    parser.add_argument("--wait", action="store_true", help="stay until it has ended; else the scheduler goes on alone")
    add_by(parser)
    add_json(parser)


def run(call: Call) -> int:
    """Begin the replay, or tell what it would mean."""
    wanted = DeadLetterFilter(
        ids=call["ids"] or None,
        queue=call["queue"],
        task_type=call["task_type"],
        exception_class=call["error"],
        reason=call["reason"],
        user=call["user"],
        died_after=call["since"],
        text=call["text"],
    )
    if not wanted.as_json() and not call["all"]:
        call.err.write("Say which dead letters: ids, a filter such as --queue, or --all.")
        return USAGE
    options = ReplayOptions(rate=call["rate"], limit=call["limit"], stop_after_failures=call["stop_after"])
    if call["dry_run"]:
        check_options(options)
        found = preview(wanted, options.limit)
        call.say(f"{found.count} open dead letters" + (", the first:" if found.sample else ""))
        for letter_id in found.sample:
            call.say(f"  {letter_id}")
        call.data({"count": found.count, "sample": found.sample, "dry_run": True})
        return OK
    with atomic():
        operation = start_replay(wanted, options, by=call.by, reason=call["why"])
        audit.record(
            "replay_many", "deadletter", by=call.by, via=audit.COMMAND, count=operation.total, reason=call["why"],
            after={"filter": wanted.as_json(), "operation": str(operation.id)},
        )  # fmt: skip
    if call["wait"]:
        operation = _wait(operation)
    call.say(
        f"operation {operation.id} {operation.state}: {operation.changed} of {operation.total} replayed"
        + ("" if call["wait"] else "; the scheduler goes on with it")
    )
    call.data(_as_dict(operation))
    return REFUSED if operation.state == OperationState.STOPPED else OK


def _wait(operation: Operation) -> Operation:
    """Advance the operation, as the scheduler does with all, until it has ended."""
    while True:
        while advance(operation.id):
            pass
        operation = get_operation(operation.id)
        if operation.state != OperationState.RUNNING:
            return operation
        time.sleep(LOOK)


def _as_dict(operation: Operation) -> dict[str, Any]:
    return {
        "operation_id": operation.id,
        "state": operation.state,
        "total": operation.total,
        "replayed": operation.changed,
        "failed_again": operation.failed_again,
    }
