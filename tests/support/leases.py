"""Short words for leases in tests, where it does not matter under which stamp they were taken."""

from __future__ import annotations

import uuid
from collections.abc import Iterable

from queue_app.index import Index, Lease


def release(index: Index, tasks: Iterable[tuple[uuid.UUID, str]]) -> int:
    """Free the slots of tasks (id, queue), whichever lease they hold now."""
    wanted = list(tasks)
    held = {lease.id: lease.leased_at for queue in {queue for _, queue in wanted} for lease in index.leases(queue)}
    return index.release(Lease(task_id, queue, held.get(task_id, 0)) for task_id, queue in wanted)


def restore(index: Index, tasks: Iterable[tuple[uuid.UUID, str]]) -> int:
    """Write leases of tasks (id, lane), all under one stamp of long ago."""
    return index.restore_leases(Lease(task_id, lane, 1) for task_id, lane in tasks)
