"""Queue the tasks of dead letters again, by id or filter; stops when the first tasks fail again."""

import time
import uuid
from argparse import ArgumentParser
from contextlib import suppress
from typing import Any

from queue_app.exceptions import IndexUnavailable
from queue_app.index import get_index
from queue_app.index.server import has_leader
from queue_app.management.verbs import OK, REFUSED, USAGE, Call, Needs, add_by_and_json
from queue_app.management.verbs._values import instant
from queue_app.models import Operation
from queue_app.models.operation import OperationState
from queue_app.services.operations.request import (
    STOP_AFTER_FAILURES,
    ReplayOptions,
    check_options,
    get_operation,
    start_replay,
)
from queue_app.services.operations.run import advance
from queue_app.services.read.dead_letters import DeadLetterFilter, preview
from queue_app.sql.database import atomic

EXAMPLE = "taskqueue replay --died-of retries_exhausted --queue mail --rate 5 --dry-run"
NEEDS = Needs.DATABASE
#: Seconds between two polls of an operation.
POLL_SECONDS = 0.5


def add_arguments(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add("ids", nargs="*", type=uuid.UUID, metavar="ID", help="ids of dead letters; default: by filter")
    add("--died-of", metavar="WHAT", help="retries_exhausted, timeout or crash_loop")
    add("--type", dest="task_type", help="task type")
    add("--queue")
    add("--user", help="owner of the tasks")
    add("--error", metavar="CLASS", help="exception class, with or without its module")
    add("--text", help="part of the error's message")
    add("--since", type=instant, metavar="TIME", help="only tasks that died at or after this time")
    add("--all", action="store_true", help="all open dead letters; required without ids or filter")
    add("--dry-run", action="store_true", help="only print the count and the first ids")
    add("--rate", type=float, metavar="N", help="replay N tasks per second; default: no limit")
    add("--limit", type=int, metavar="N", help="replay at most N tasks, oldest first")
    add(
        "--stop-after",
        type=int,
        default=STOP_AFTER_FAILURES,
        metavar="K",
        help=f"replay K tasks first and stop if they fail again; 0: never stop (default {STOP_AFTER_FAILURES})",
    )
    add("--reason", default="", metavar="TEXT", help="why; kept in the audit log")
    add("--wait", action="store_true", help="wait for the end instead of leaving the replay to the scheduler")
    add_by_and_json(parser)


def run(call: Call) -> int:
    """Start the replay, or print what it would do."""
    wanted = DeadLetterFilter(
        ids=call["ids"] or None,
        queue=call["queue"],
        task_type=call["task_type"],
        exception_class=call["error"],
        reason=call["died_of"],
        user=call["user"],
        died_after=call["since"],
        text=call["text"],
    )
    if not wanted.as_json() and not call["all"]:
        call.err.write("Give ids, a filter such as --queue, or --all.")
        return USAGE
    options = ReplayOptions(rate=call["rate"], limit=call["limit"], stop_after_failures=call["stop_after"])
    if call["dry_run"]:
        check_options(options)
        found = preview(wanted, options.limit)
        lines = [f"open dead letters: {found.count}" + ("; the first:" if found.sample else "")]
        lines += [f"  {letter_id}" for letter_id in found.sample]
        return call.answer("\n".join(lines), {"count": found.count, "sample": found.sample, "dry_run": True})
    with atomic():
        operation = start_replay(wanted, options, by=call.by, reason=call["reason"])
        call.record(
            "replay_many", "deadletter", count=operation.total, reason=call["reason"],
            after={"filter": wanted.as_json(), "operation": str(operation.id)},
        )  # fmt: skip
    if call["wait"]:
        operation = _wait(operation)
    call.write(
        f"operation {operation.id} {operation.state}: {operation.changed} of {operation.total} replayed"
        + ("" if call["wait"] else _continuation())
    )
    call.write_json(_as_dict(operation))
    return REFUSED if operation.state == OperationState.STOPPED else OK


def _continuation() -> str:
    """Say what continues the operation."""
    with suppress(IndexUnavailable):
        if not has_leader(get_index()):
            return "; it waits for a scheduler: start `manage.py runscheduler`"
    return "; the scheduler continues it"


def _wait(operation: Operation) -> Operation:
    """Advance the operation until it has ended; the scheduler may do so too."""
    while True:
        while advance(operation.id):
            pass
        operation = get_operation(operation.id)
        if operation.state != OperationState.RUNNING:
            return operation
        time.sleep(POLL_SECONDS)


def _as_dict(operation: Operation) -> dict[str, Any]:
    return {
        "operation_id": operation.id,
        "state": operation.state,
        "total": operation.total,
        "replayed": operation.changed,
        "failed_again": operation.failed_again,
    }
