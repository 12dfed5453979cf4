"""Delete records past their retention: ended tasks, dead letters, statistics, stopped workers."""

import math
from argparse import ArgumentParser

from queue_app import conf
from queue_app.management.verbs import Call, Needs, add_by_and_json
from queue_app.services.upkeep.maintenance import purge
from queue_app.sql.database import atomic
from queue_app.sql.upkeep import count_purgeable

EXAMPLE = "taskqueue purge --dry-run"
NEEDS = Needs.DATABASE


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--dry-run", action="store_true", help="only count the tasks to delete")
    parser.add_argument("--reason", default="", metavar="TEXT", help="for the audit log")
    add_by_and_json(parser)


def run(call: Call) -> int:
    """Purge everything past its retention, in small batches that lock no table."""
    if call["dry_run"]:
        retention = conf.get().retention
        count = count_purgeable(retention.success_seconds, retention.failure_seconds, retention.idempotency_seconds)
        return call.answer(f"ended tasks past their retention: {count}", {"tasks": count, "dry_run": True})
    deleted = purge(seconds=math.inf)
    with atomic():
        call.record("purge", "task", count=deleted, reason=call["reason"])
    return call.answer(f"ended tasks deleted: {deleted}", {"tasks": deleted, "dry_run": False})
