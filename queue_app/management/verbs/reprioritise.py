"""Move waiting tasks to another band, by id or filter; they keep their time."""

from argparse import ArgumentParser

from queue_app.core.priorities import parse_band
from queue_app.management.verbs import Call, Needs, add_by_and_json
from queue_app.management.verbs._operations import add_options, add_task_filter, run_on_tasks
from queue_app.models.operation import OperationKind
from queue_app.services.operations.request import Action

EXAMPLE = "taskqueue reprioritise background --type shop.tasks.report --since 2h --dry-run"
NEEDS = Needs.DATABASE


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("priority", help="critical, high, normal, low or background")
    add_task_filter(parser)
    add_options(parser)
    add_by_and_json(parser)


def run(call: Call) -> int:
    """Start the operation, or print what it would do."""
    band = parse_band(call["priority"])
    return run_on_tasks(call, Action(kind=OperationKind.REPRIORITISE, band=band), "moved")
