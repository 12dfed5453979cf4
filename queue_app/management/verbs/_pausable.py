"""Arguments of ``pause`` and ``resume``: a queue, a task type, a concurrency key, or everything."""

from __future__ import annotations

from argparse import ArgumentParser

from queue_app.management.verbs import Call


def add_target(parser: ArgumentParser) -> None:
    """Declare the arguments, of which exactly one must be given."""
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("queue", nargs="?", metavar="QUEUE")
    what.add_argument("--type", dest="task_type", metavar="TYPE", help="a task type, in all queues")
    what.add_argument("--key", metavar="KEY", help="a concurrency key")
    what.add_argument("--all", action="store_true", help="everything")


def target(call: Call) -> tuple[str, str]:
    """Return (kind, name) as the audit trail stores them."""
    for kind, option in (("queue", "queue"), ("type", "task_type"), ("key", "key")):
        if call[option] is not None:
            return kind, call[option]
    return "all", ""
