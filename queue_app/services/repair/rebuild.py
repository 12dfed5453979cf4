"""Rebuild the index from the rows, when it is missing or belongs to an older generation.

1. Wait for claims under way, then raise the generation in PostgreSQL: from now on the rows refuse
   everything that the old index proposed.
2. Begin the generation in the index, which now refuses claims. Copy the limits, then delete all else.
3. Write the leases of executing rows, and the queued rows.
4. Allow claims, unless another rebuild has begun meanwhile.

So limits hold from the first claim on. A crash at any step leaves an index that refuses claims, and
the next rebuild starts over. Pushes continue during a rebuild: they are idempotent.
"""

import time
import uuid
from dataclasses import dataclass

from queue_app import signals
from queue_app.exceptions import IndexOfAnotherDatabase, IndexUnavailable
from queue_app.index import get_index
from queue_app.models import PriorityPolicy
from queue_app.services.repair.ownership import check_owner, is_foreign
from queue_app.sql import comparison, snapshot, workers
from queue_app.sql.database import alias, clock
from queue_app.sql.identity import database_identity

#: Time after which the lock of a dead rebuilder lapses; each step renews it.
LOCK_SECONDS = 5.0
#: Rows that are read at a time and pushed between two renewals of the lock. With thousands of lanes, larger pages bring
#: more tasks of a lane together.
PAGE = 40_000

#: Tokens of locks that this process could not release because Redis was away: its next rebuild holds that lock already.
_unreleased: list[str] = []


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """What a rebuild wrote: its generation, queued tasks, leases, and how long it took (s)."""

    generation: int
    tasks: int
    leases: int
    seconds: float


def is_needed(generation: int) -> bool:
    """Whether the index is not ready or not of this generation, which the rows had a moment ago."""
    found = get_index().generation()
    return found.state != "ready" or found.number != generation or is_foreign(found.owner)


def rebuild_if_needed() -> Rebuilt | None:
    """Rebuild the index unless it is ready and of the rows' generation; ``None`` when nothing was done."""
    found = get_index().generation()  # read before the rows, or a rebuild that ends in between would look stale
    is_ready = found.state == "ready" and found.number == snapshot.generation() and not is_foreign(found.owner)
    return None if is_ready else rebuild()


def rebuild(*, adopt: bool = False) -> Rebuilt | None:
    """Rebuild the index; return ``None`` when another process is rebuilding it, or the index was lost meanwhile.

    A process that loses the lock stops before it deletes anything. If two rebuilds run at once, the later
    generation wins. Raises ``IndexOfAnotherDatabase``, unless the caller wants to ``adopt`` such an index.
    """
    started = time.monotonic()
    index = get_index()
    if adopt:
        index.disown()
    try:
        check_owner()
    except IndexOfAnotherDatabase:
        if index.generation().number == snapshot.generation():
            snapshot.raise_generation()  # the rows would accept claims from that index
        raise
    token = _unreleased.pop() if _unreleased else uuid.uuid4().hex
    if not index.lock("rebuild", token, LOCK_SECONDS):
        return None
    try:
        number = snapshot.raise_generation(above=index.generation().number)
        if not index.begin_generation(number, token, copy_limits, database_identity()):
            return None
        leases = index.restore_leases(snapshot.executing())
        tasks = 0
        for page in comparison.packed_pages(PAGE):
            tasks += page.size
            index.push_lanes(page.lanes)
            index.lock("rebuild", token, LOCK_SECONDS)
        if not index.finish_generation(number):
            return None
    finally:
        try:
            index.lock("rebuild", token, 0)
        except IndexUnavailable:
            _unreleased.append(token)
            raise
    snapshot.record_ready(number, tasks, leases)
    index.notify_workers(workers.live())  # the new index has no idle workers: each worker must claim once
    rebuilt = Rebuilt(number, tasks, leases, time.monotonic() - started)
    signals.index_rebuilt.send(None, generation=number, tasks=tasks, leases=leases, seconds=rebuilt.seconds)
    return rebuilt


def copy_limits() -> int:
    """Copy all limits and the promotion thresholds from their rows to the index; return how many differed.

    Tells the index the rows' time first: throttles and ages are instants of the rows.
    An edit between reading a row and writing its copy would be overwritten. So after a change the rows
    are read again, until nothing differs.
    """
    get_index().set_clock(clock())
    differed = changed = _copy_limits_once()
    for _ in range(3):
        if not changed:
            break
        changed = _copy_limits_once()
    return differed


def _copy_limits_once() -> int:
    index = get_index()
    found = snapshot.limits()
    changed = int(index.set_thresholds(PriorityPolicy.thresholds(alias())))
    changed += sum(index.set_limits(gate, limits) for gate, limits in found.items())
    changed += sum(index.set_limits(gate, None) for gate in index.limited() - set(found))
    return changed
