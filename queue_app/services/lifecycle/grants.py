"""Let a worker keep the tasks that it runs, although PostgreSQL has forgotten that it granted them.

The commit of a claim does not wait for the disk. After a crash of PostgreSQL, or the promotion of a standby, the row of
a running task may be queued again, under a lease that still stands. A worker names the grants that it holds with each
heartbeat, and sends two heartbeats as soon as it meets another run of PostgreSQL. Until every living worker has done
so, the reconciler abandons no lease, and no rebuild reads the rows.

Crash points: before the commit nothing has changed, and the next heartbeat repeats it. After it, the row executes under
the lease that stands, as after a claim.
"""

import logging
import uuid
from collections.abc import Sequence
from itertools import groupby

from queue_app.core.records import AttemptKey, ClaimedTask
from queue_app.index import Index
from queue_app.services.notify import events
from queue_app.services.notify.index import notify_index
from queue_app.sql import grants as rows
from queue_app.sql.grants import Comparison

_log = logging.getLogger("taskqueue")


def compare(worker_id: uuid.UUID, held: Sequence[AttemptKey]) -> Comparison:
    """Grant again what the rows have forgotten of the grants that a worker holds; return also what it has lost."""
    found = rows.grant_again(worker_id, held)
    if found.again:
        notify_index(Index.restore_leases, "restore", found.leases)
        events.count({"repair:granted_again": len(found.again)})
        _log.warning("PostgreSQL had forgotten %d grants of worker %s; it has them again", len(found.again), worker_id)
    return found


def keep(tasks: Sequence[ClaimedTask]) -> list[ClaimedTask]:
    """Return those of the tasks whose grants the rows had forgotten and have granted again."""
    held = sorted((task for task in tasks if task.worker_id is not None), key=lambda task: str(task.worker_id))
    kept = []
    for worker_id, group in groupby(held, key=lambda task: task.worker_id):
        mine = list(group)
        again = compare(worker_id, [task.key for task in mine]).again if worker_id is not None else frozenset()
        kept += [task for task in mine if task.key in again]
    return kept
