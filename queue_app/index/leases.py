"""Leases: the slots that tasks take until their rows say that they are free."""

import uuid
from collections.abc import Iterable, Iterator
from collections.abc import Set as AbstractSet
from itertools import batched
from typing import Any, cast

from queue_app.core.records import Lease
from queue_app.index.calls import Calls
from queue_app.index.client import translated

#: Maximum entries per call of a script, so that no script blocks the server for long.
BATCH = 500
#: Keys that one step of a scan looks at.
SCANNED = 1000


class Leases(Calls):
    """The part of the index that holds leases."""

    def release(self, leases: Iterable[Lease]) -> int:
        """Free slots, each only if it is still held under that lease; return how many were."""
        return self._each("release", leases)

    def restore_leases(self, leases: Iterable[Lease]) -> int:
        """Write the leases of executing rows; return how many were missing, incomplete or different."""
        return self._each("restore_leases", leases)

    def _each(self, script: str, leases: Iterable[Lease]) -> int:
        return sum([int(self._call(script, *_grouped(batch))) for batch in batched(leases, BATCH)])

    def missing_leases(self, leases: Iterable[Lease]) -> list[uuid.UUID]:
        """Return the tasks whose lease in the index is missing, incomplete or different."""
        return [
            uuid.UUID(bytes=task_id)
            for batch in batched(leases, BATCH)
            for task_id in self._call("missing_leases", *_grouped(batch))
        ]

    def last_proposal(self, worker_id: uuid.UUID) -> list[Lease]:
        """Return the leases that are left of a worker's last proposal."""
        reply = self._call("last_proposal", str(worker_id))
        pairs = zip(reply[1::2], reply[2::2], strict=True)
        return [Lease(uuid.UUID(bytes=task_id), queue.decode(), int(reply[0])) for task_id, queue in pairs]

    def leases(self, queue: str) -> Iterator[Lease]:
        """Yield the leases of a queue, in pages."""
        cursor = 0
        while True:
            with translated("leases", self.alias):
                cursor, page = self._client.zscan(self.keys.queue_leases(queue), cursor, count=BATCH)
            for task_id, leased_at in page:
                yield Lease(uuid.UUID(bytes=cast("bytes", task_id)), queue, int(leased_at))
            if cursor == 0:
                return

    def incomplete_leases(self, complete: AbstractSet[uuid.UUID]) -> list[Lease]:
        """Return the leases that have lost their stamp: all in the index that are not among the ``complete`` ones."""
        with translated("leases", self.alias):
            found = self._client.hscan_iter(self.keys.leases, count=BATCH)
            leases = [Lease(uuid.UUID(bytes=cast("bytes", key)), lane.decode(), 0) for key, lane in found]
        return [lease for lease in leases if lease.id not in complete]

    def leave_gates(self, cursor: int) -> tuple[int, int]:
        """Remove members without a lease from gates, in a bounded part of the keys.

        Returns (where to continue, 0 at the end; how many were removed).
        """
        with translated("leases", self.alias):
            cursor, keys = self._client.scan(cursor, match=self.keys.held("*"), count=SCANNED)
        removed = 0
        for key in cast("list[bytes]", keys):
            gate = key.decode().removeprefix(self.keys.held(""))
            with translated("leases", self.alias):
                members = list(self._client.sscan_iter(key, count=BATCH))
            removed += sum(int(self._call("leave_gate", gate, *batch)) for batch in batched(members, BATCH))
        return cursor, removed


def _grouped(leases: Iterable[Lease]) -> list[Any]:
    """Return the arguments of a script: each lane once, the number of its leases, and their ids and stamps."""
    lanes: dict[str, list[Any]] = {}
    for task_id, lane, leased_at in leases:
        lanes.setdefault(lane, []).extend((task_id.bytes, leased_at))
    return [part for lane, found in lanes.items() for part in (lane, len(found) // 2, *found)]
