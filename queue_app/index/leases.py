"""Leases: the slots that tasks take until their rows say that they are free."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Sequence
from itertools import batched, chain
from typing import Any, NamedTuple, cast

from queue_app.core.records import ANY_LEASE
from queue_app.index.calls import Calls
from queue_app.index.client import translated

#: Maximum entries per call of a script, so that no script blocks the server for long.
BATCH = 500


class Lease(NamedTuple):
    """A slot in use: the task, its queue and the instant of the lease (index time, µs; ``ANY_LEASE``: unknown)."""

    id: uuid.UUID
    queue: str
    leased_at: int = ANY_LEASE


class Leases(Calls):
    """The part of the index that holds leases."""

    def release(self, leases: Iterable[Lease]) -> int:
        """Free the slots of tasks whose rows are no longer executing, each only if it still holds that lease."""
        entries = (
            (queue, (task_id.bytes, "" if leased_at == ANY_LEASE else leased_at))
            for task_id, queue, leased_at in leases
        )
        return self._total("release", map(_grouped, batched(entries, BATCH)))

    def restore_leases(self, tasks: Iterable[tuple[uuid.UUID, str]]) -> int:
        """Write the leases of tasks (id, lane) whose rows are executing; return how many were missing."""
        entries = ((lane, (task_id.bytes,)) for task_id, lane in tasks)
        return self._total("restore_leases", map(_grouped, batched(entries, BATCH)))

    def revoke(self, leases: Iterable[Lease]) -> int:
        """Revoke leases that no row confirms, each only if it is still the same lease; return how many were."""
        entries = ((queue, task_id.bytes, leased_at) for task_id, queue, leased_at in leases)
        return self._total("revoke", (list(chain.from_iterable(batch)) for batch in batched(entries, BATCH)))

    def last_proposal(self, worker_id: uuid.UUID) -> list[Lease]:
        """Return the leases that are left of a worker's last proposal."""
        reply = self._call("last_proposal", str(worker_id))
        pairs = zip(reply[1::2], reply[2::2], strict=True)
        return [Lease(uuid.UUID(bytes=task_id), queue.decode(), int(reply[0])) for task_id, queue in pairs]

    def missing_leases(self, tasks: Sequence[tuple[uuid.UUID, str]]) -> list[tuple[uuid.UUID, str]]:
        """Return the tasks (id, lane) that hold no lease."""
        missing: list[tuple[uuid.UUID, str]] = []
        for batch in batched(tasks, BATCH):
            with translated("leases", self.alias):
                held = self._client.hmget(self.keys.leases, [task_id.bytes for task_id, _ in batch])
            missing += [task for task, lane in zip(batch, held, strict=True) if lane is None]
        return missing

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


def _grouped(entries: Iterable[tuple[str, tuple[Any, ...]]]) -> list[Any]:
    """Return the arguments of a script: each name once, the number of its entries, and their parts."""
    groups: dict[str, list[tuple[Any, ...]]] = {}
    for name, parts in entries:
        groups.setdefault(name, []).append(parts)
    args: list[Any] = []
    for name, found in groups.items():
        args += (name, len(found), *(part for parts in found for part in parts))
    return args
