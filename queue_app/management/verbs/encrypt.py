"""Encrypt stored data with the newest key, or make a key."""

from argparse import ArgumentParser

from queue_app import conf, encryption
from queue_app.exceptions import EncryptionUnavailable
from queue_app.management.verbs import Call, Needs, add_by_and_json
from queue_app.models.operation import OperationKind, OperationState
from queue_app.services.control.encrypted import reencrypt_schedules
from queue_app.services.operations.request import Action, OperationOptions, get_operation, start_operation
from queue_app.services.operations.run import advance
from queue_app.services.read.task_filter import TaskFilter
from queue_app.sql.database import atomic

EXAMPLE = "taskqueue encrypt --rate 500 --reason 'yearly rotation'"
NEEDS = Needs.DATABASE | Needs.TASKS


def add_arguments(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add("--new-key", metavar="ID", help="only print a new entry for ENCRYPTION.KEYS, which must be kept secret")
    add("--type", dest="task_type", help="only tasks of this type")
    add("--rate", type=float, metavar="N", help="N tasks per second; default: no limit")
    add("--reason", default="", metavar="TEXT", help="why; kept in the audit log")
    add("--no-wait", action="store_true", help="leave the work to the scheduler")
    add_by_and_json(parser)


def run(call: Call) -> int:
    """Start an operation over the tasks, and carry it out; a repetition continues where this one was stopped."""
    if call["new_key"] is not None:
        entry = encryption.new_key(call["new_key"])
        return call.answer(entry, {"key": entry})
    if not conf.get().encryption.keys:
        raise EncryptionUnavailable(f"{encryption.NO_KEY} {encryption.MAKE_ONE}")
    wanted = TaskFilter(task_types=[call["task_type"]] if call["task_type"] else ())
    with atomic():
        schedules = 0 if call["task_type"] else reencrypt_schedules()
        action, options = Action(kind=OperationKind.REENCRYPT), OperationOptions(rate=call["rate"])
        operation = start_operation(action, wanted, options, by=call.by, reason=call["reason"])
        after = {"filter": wanted.as_json(), "operation": str(operation.id), "schedules": schedules}
        call.record("reencrypt", "task", count=operation.total, reason=call["reason"], after=after)
    while not call["no_wait"] and (operation := get_operation(operation.id)).state == OperationState.RUNNING:
        advance(operation.id)
    text = f"operation {operation.id} {operation.state}: {operation.changed} of {operation.total} tasks changed"
    return call.answer(text, {"operation_id": operation.id, "state": operation.state, "changed": operation.changed})
