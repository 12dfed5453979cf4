"""Enqueue a task by the name of its type; prints its id."""

from argparse import ArgumentParser

from queue_app.core.options import Door, at
from queue_app.core.priorities import parse_band
from queue_app.core.records import NewTask
from queue_app.management.verbs import Call, Needs, add_json
from queue_app.management.verbs._values import add_options, instant, json_object, parameter
from queue_app.services.enqueue.store import submit

EXAMPLE = "taskqueue submit shop.tasks.send_receipt --param order_id=7 --priority high --run-after 15m"
NEEDS = Needs.DATABASE | Needs.TASKS
#: Options that are passed on unchanged.
PLAIN_OPTIONS = ("queue", "run_after", *at(Door.COMMAND))


def add_arguments(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add("task_type", metavar="TYPE", help="name of a registered task, as in the admin")
    add(
        "--param",
        action="append",
        default=[],
        type=parameter,
        metavar="NAME=VALUE",
        help="a text parameter; repeatable",
    )
    example = "parameters as JSON, such as '{\"order_id\": 7}'; --param adds to them"
    add("--json-params", type=json_object, default={}, metavar="OBJECT", help=example)
    add("--queue", help="default: the task's queue")
    add("--priority", help="critical, high, normal, low or background; default: the task's priority")
    add("--run-after", type=instant, metavar="WHEN", help="a time with its zone, or a duration from now (15m)")
    add_options(parser, Door.COMMAND)
    add("--as", dest="by", metavar="USER", help="owner of the task; default: the system user")
    add_json(parser)


def run(call: Call) -> int:
    """Enqueue the task; print the id alone on a line, for scripts."""
    submitted = submit(
        NewTask(
            task_type=call["task_type"],
            parameters=call["json_params"] | dict(call["param"]),
            user=call.by,
            priority=None if call["priority"] is None else parse_band(call["priority"]),
            **{name: call[name] for name in PLAIN_OPTIONS},
        )
    )
    return call.answer(
        str(submitted.id),
        {
            "task_id": submitted.id,
            "status": submitted.status,
            "queue": submitted.spec.queue,
            "priority": submitted.spec.band.label,
            "queue_position": submitted.queue_position,
            "replayed": submitted.replayed,
        },
    )
