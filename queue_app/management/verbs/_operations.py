"""Options and output that the verbs share which change many tasks as an operation."""

import time
import uuid
from argparse import ArgumentParser
from collections.abc import Iterator
from typing import Any

from queue_app.core.states import Status
from queue_app.exceptions import InvalidTaskData
from queue_app.management.verbs import OK, REFUSED, USAGE, Call
from queue_app.management.verbs._values import past_instant
from queue_app.models import Operation
from queue_app.models.dead_letter import OPEN_NAME
from queue_app.models.operation import OperationState, OperationTarget
from queue_app.services.lifecycle.actions import undone_refusal
from queue_app.services.operations.request import (
    OPTIONS,
    ORDERS,
    Action,
    OperationOptions,
    get_operation,
    preview_operation,
    start_operation,
)
from queue_app.services.operations.run import advance
from queue_app.services.read.dead_letters import DeadLetterFilter, matching, refusal
from queue_app.services.read.task_filter import TaskFilter
from queue_app.services.upkeep.jobs import leader_lapses
from queue_app.sql.database import atomic

#: Number of dead letters that are named because they were not replayed.
NAMED = 5
#: Seconds between two polls of an operation.
POLL_SECONDS = 0.5


def add_ids(parser: ArgumentParser, what: str) -> None:
    """Declare the ids of what an operation changes."""
    parser.add_argument("ids", nargs="*", type=uuid.UUID, metavar="ID", help=f"ids of {what}; default: by filter")


def add_task_filter(parser: ArgumentParser) -> None:
    """Declare which tasks an operation changes, by the names of ``TaskFilter``."""
    add_ids(parser, "tasks")
    add = parser.add_argument
    time: dict[str, Any] = {"type": past_instant, "metavar": "TIME"}
    add("--type", dest="task_types", nargs=1, metavar="TASK-TYPE", help="only tasks of this type")
    add("--queue", dest="queues", nargs=1, metavar="QUEUE", help="only tasks of this queue")
    add("--user", help="only tasks of this owner")
    add(
        "--status", dest="statuses", nargs=1, metavar="STATUS",
        help="only tasks in this state, such as queued or scheduled",
    )  # fmt: skip
    add("--since", dest="created_after", help="only tasks stored since this time (15m: 15 minutes ago)", **time)
    add("--until", dest="created_before", help="only tasks stored before this time (15m: 15 minutes ago)", **time)
    add("--all", action="store_true", help="all tasks; required without ids or filter")


def add_options(parser: ArgumentParser) -> None:
    """Declare how an operation works."""
    add = parser.add_argument
    add("--dry-run", action="store_true", help="only print the count and the first ids")
    for name in ("rate", "limit"):
        about = OPTIONS[name].about
        add(f"--{name}", type=OPTIONS[name].kind, metavar="N", help=about[0].lower() + about[1:].rstrip("."))
    add("--order", choices=ORDERS, default=ORDERS[0], help=f"which come first (default: {ORDERS[0]})")
    add("--reason", default="", metavar="TEXT", help="why; kept in the audit log")
    add("--wait", action="store_true", help="wait for the end instead of leaving it to the scheduler")


def options_of[O: OperationOptions](kind: type[O], call: Call, **more: int) -> O:
    """Return the options of an operation that the caller gave."""
    return kind(rate=call["rate"], limit=call["limit"], order=call["order"], **more)


def run_on_tasks(call: Call, action: Action, done: str) -> int:
    """Start an action on the tasks of the options, or print what it would do; ``done`` is the participle."""
    wanted, known = TaskFilter.of(call.options), sorted(Status)
    for name in wanted.statuses:
        if name not in known:
            raise InvalidTaskData("status", f"There is no state {name!r}. The states are {', '.join(known)}.")
    return run_operation(call, action, wanted, options_of(OperationOptions, call), done)


def run_operation(
    call: Call, action: Action, wanted: TaskFilter | DeadLetterFilter, options: OperationOptions, done: str
) -> int:
    """Start an action on all that a filter matches, or print what it would do."""
    if not wanted.as_json() and not call["all"]:
        call.err.write("Give ids, a filter such as --queue, or --all.")
        return USAGE
    for task_type in wanted.task_types:
        call.note_unknown_type(task_type)
    of_letters = isinstance(wanted, DeadLetterFilter)
    if call["dry_run"]:
        found = preview_operation(action, wanted, options)
        what = "open dead letters" if of_letters else "tasks"
        lines = [f"{what}: {found.count:,}" + ("; the first:" if found.sample else "")]
        lines += [f"  {row_id}" for row_id in found.sample]
        return call.answer("\n".join(lines), {"count": found.count, "sample": found.sample, "dry_run": True})
    name, target = ("replay_many", "deadletter") if of_letters else (f"{action.kind}_all", "task")
    with atomic():
        operation = start_operation(action, wanted, options, by=call.by, reason=call["reason"])
        after = {"filter": wanted.as_json(), "operation": str(operation.id)}
        call.record(name, target, count=operation.total, reason=call["reason"], after=after)
    return _finish(call, operation, done)


def _finish(call: Call, operation: Operation, done: str) -> int:
    """Wait for the end of an operation if the caller wants to, and print its state."""
    if call["wait"]:
        operation = _wait(operation)
    text = f"operation {operation.id} {operation.state}: {operation.changed} of {operation.total} {done}"
    facts: dict[str, Any] = {"operation_id": operation.id, "state": operation.state, "total": operation.total}
    facts |= {done: operation.changed, "failed_again": operation.failed_again}
    if operation.target == OperationTarget.DEAD_LETTERS and operation.state == OperationState.DONE:
        facts["not_replayed"] = refused = dict(_not_replayed(operation))
        text = "\n".join([text, *(f"  {letter}: {why}" for letter, why in refused.items())])
    call.answer(text + ("" if call["wait"] else _continuation()), facts)
    return REFUSED if operation.state == OperationState.STOPPED else OK


def _not_replayed(operation: Operation) -> Iterator[tuple[str, str]]:
    """Yield some of the dead letters that an ended replay has left as they are, and why."""
    wanted = DeadLetterFilter.from_json(operation.filter)
    letters = matching(wanted).exclude(operation_id=operation.pk).filter(died_at__lte=operation.created_at)
    if wanted.ids is None:
        letters = letters.open()
    for letter in letters.order_by("died_at")[:NAMED]:
        undone = undone_refusal(letter.task_id) if letter.state == OPEN_NAME else None
        yield str(letter.pk), str(undone or refusal(letter.pk, "replayed"))


def _continuation() -> str:
    """Say what continues the operation."""
    if leader_lapses() is None:
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
