"""Delete what is past its retention: ended tasks, dead letters, statistics, stopped workers."""

import math
from argparse import ArgumentParser

from queue_app import conf
from queue_app.management.verbs import OK, Call, Needs, add_by, add_json
from queue_app.services.control import audit
from queue_app.services.upkeep.maintenance import purge
from queue_app.sql.database import atomic
from queue_app.sql.upkeep import count_purgeable

EXAMPLE = "taskqueue purge --dry-run"
NEEDS = Needs.SETTINGS | Needs.DATABASE


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--dry-run", action="store_true", help="only count the tasks to delete")
    add_by(parser)
    add_json(parser)


def run(call: Call) -> int:
    """Purge everything past its retention, in small batches that lock no table."""
    if call["dry_run"]:
        retention = conf.get().retention
        count = count_purgeable(retention.success_seconds, retention.failure_seconds, retention.idempotency_seconds)
        call.write(f"ended tasks past their retention: {count}")
        call.write_json({"tasks": count, "dry_run": True})
        return OK
    deleted = purge(seconds=math.inf)
    with atomic():
        audit.record("purge", "task", by=call.by, via=audit.COMMAND, count=deleted)
    call.write(f"ended tasks deleted: {deleted}")
    call.write_json({"tasks": deleted, "dry_run": False})
    return OK
