"""Explain why a task is not running: every pause, limit and missing worker."""

import uuid
from argparse import ArgumentParser

from django.core.management import CommandError

from queue_app.diagnose.explain import explain
from queue_app.exceptions import TaskNotFound
from queue_app.management.verbs import REFUSED, Call, Needs, add_json
from queue_app.models import Workflow
from queue_app.sql.database import alias

EXAMPLE = "taskqueue explain 0198c5d1-6f0e-7000-8000-000000000001"
NEEDS = Needs.DATABASE | Needs.READABLE


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("id", type=uuid.UUID, metavar="ID", help="id of a task")
    add_json(parser)


def run(call: Call) -> int:
    """Print the reasons, the most decisive first."""
    try:
        explanation = explain(call["id"])
    except TaskNotFound:
        if Workflow.objects.using(alias()).filter(pk=call["id"]).exists():
            text = f"{call['id']} is a workflow: run `taskqueue workflow show {call['id']}`."
            raise CommandError(text, returncode=REFUSED) from None
        raise
    return call.answer("\n".join(explanation.lines()), explanation.as_dict())
