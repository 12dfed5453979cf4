"""Explain why a task is not running: every pause, limit and missing worker."""

import uuid
from argparse import ArgumentParser

from queue_app.management.verbs import Call, Needs, add_json
from queue_app.services.read.explain import explain

EXAMPLE = "taskqueue explain 0198c5d1-6f0e-7000-8000-000000000001"
NEEDS = Needs.SETTINGS | Needs.DATABASE


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("id", type=uuid.UUID, metavar="ID", help="id of a task")
    add_json(parser)


def run(call: Call) -> int:
    """Print the reasons, the most decisive first."""
    explanation = explain(call["id"])
    return call.answer("\n".join(explanation.lines()), explanation.as_dict())
