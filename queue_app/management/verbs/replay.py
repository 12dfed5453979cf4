"""Queue the tasks of dead letters again, by id or filter; stops when the first tasks fail again."""

from argparse import ArgumentParser

from django.core.management import CommandError
from django.db.models import Q

from queue_app.management.verbs import REFUSED, Call, Needs, add_by_and_json
from queue_app.management.verbs._operations import add_ids, add_options, options_of, run_operation
from queue_app.management.verbs._values import past_instant
from queue_app.models import DeadLetter, Task
from queue_app.models.operation import OperationKind
from queue_app.services.lifecycle.actions import undone_refusal
from queue_app.services.operations.request import STOP_AFTER_FAILURES, Action, ReplayOptions
from queue_app.services.read.dead_letters import DeadLetterFilter
from queue_app.sql.database import alias

EXAMPLE = "taskqueue replay --died-of retries_exhausted --queue mail --rate 5 --dry-run"
NEEDS = Needs.DATABASE


def add_arguments(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add_ids(parser, "dead letters, or of their tasks")
    add("--died-of", metavar="WHAT", help="retries_exhausted, timeout or crash_loop")
    add("--type", dest="task_type", help="task type")
    add("--queue")
    add("--user", help="owner of the tasks")
    add("--error", dest="exception_class", metavar="CLASS", help="exception class, with or without its module")
    add("--text", help="part of the error's message")
    add(
        "--since",
        dest="died_after",
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
    add_options(parser)
    add_by_and_json(parser)


def _direction(task: Task) -> str:
    """Return what to run for a task without an open dead letter."""
    if task.workflow_id is None:
        return f"{task.pk} is a task without an open dead letter: run `taskqueue explain {task.pk}`."
    return (
        f"{task.pk} is a task without an open dead letter. If it holds its workflow, run `taskqueue workflow retry"
        f" {task.workflow_id}`, or `taskqueue workflow skip {task.workflow_id} --task {task.pk}`."
    )


def run(call: Call) -> int:
    """Start the replay, or print what it would do."""
    named = Q(pk__in=call["ids"]) | Q(task_id__in=call["ids"])
    of_tasks = dict(DeadLetter.objects.using(alias()).open().filter(named).values_list("task_id", "pk"))
    for task in Task.objects.using(alias()).filter(pk__in=call["ids"]).exclude(pk__in=of_tasks):
        raise CommandError(_direction(task), returncode=REFUSED)
    for task_id in of_tasks:
        if undone := undone_refusal(task_id):
            raise CommandError(f"{task_id}: {undone}", returncode=REFUSED)
    # `--reason` is that of the replay
    ids = {"ids": [of_tasks.get(each, each) for each in call["ids"]], "reason": call["died_of"]}
    wanted = DeadLetterFilter.of(call.options | ids)
    options = options_of(ReplayOptions, call, stop_after_failures=call["stop_after"])
    return run_operation(call, Action(kind=OperationKind.REPLAY), wanted, options, "replayed")
