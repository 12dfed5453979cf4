"""Set limits and bands, as in the admin; the next claim uses them."""

from argparse import ArgumentParser

from queue_app.management.verbs import Call, Needs, add_by_and_json
from queue_app.management.verbs._values import setting, settings_by_owner
from queue_app.services.control import audit
from queue_app.services.control.queues import apply

EXAMPLE = "taskqueue limit everything.max_concurrent=40 everything.adaptive=gradient2 --reason 'a new database'"
NEEDS = Needs.DATABASE


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "changes", type=setting, nargs="+", metavar="NAME.FIELD=VALUE",
        help="such as queue:mail.max_concurrent=5, type:shop.tasks.export.adaptive=gradient2,"
        " key:customer.rate_count=10, everything.max_concurrent=40 or"
        " band:low.promote_after_seconds=60; none for no limit",
    )  # fmt: skip
    parser.add_argument("--reason", default="", metavar="TEXT", help="why; kept in the audit log")
    add_by_and_json(parser)


def run(call: Call) -> int:
    """Write the settings in one transaction, and record them in the audit log."""
    changes = settings_by_owner(call["changes"])
    rows = apply(changes, by=call.by, via=audit.COMMAND, reason=call["reason"])
    return call.answer(f"set: {', '.join(map(str, rows))}", changes)
