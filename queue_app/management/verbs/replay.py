"""Queue the tasks of dead letters again, by id or filter; stops when the first tasks fail again."""

import uuid
from argparse import ArgumentParser

from queue_app.management.verbs import USAGE, Call, Needs, add_by_and_json
from queue_app.management.verbs._operations import add_options, finish
from queue_app.management.verbs._values import past_instant
from queue_app.services.operations.request import STOP_AFTER_FAILURES, ReplayOptions, check_options, start_replay
from queue_app.services.read.dead_letters import DeadLetterFilter, preview
from queue_app.sql.database import atomic

EXAMPLE = "taskqueue replay --died-of retries_exhausted --queue mail --rate 5 --dry-run"
NEEDS = Needs.DATABASE


def add_arguments(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add("ids", nargs="*", type=uuid.UUID, metavar="ID", help="ids of dead letters; default: by filter")
    add("--died-of", metavar="WHAT", help="retries_exhausted, timeout or crash_loop")
    add("--type", dest="task_type", help="task type")
    add("--queue")
    add("--user", help="owner of the tasks")
    add("--error", metavar="CLASS", help="exception class, with or without its module")
    add("--text", help="part of the error's message")
    add(
        "--since",
        type=past_instant,
        metavar="TIME",
        help="only tasks that died since this time (2h: two hours ago)",
    )
    add("--all", action="store_true", help="all open dead letters; required without ids or filter")
    add(
        "--stop-after",
        type=int,
        default=STOP_AFTER_FAILURES,
        metavar="K",
        help=f"replay K tasks first and stop if they fail again; 0: never stop (default {STOP_AFTER_FAILURES})",
    )
    add_options(parser, "replay")
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
    return finish(call, operation, "replayed")
