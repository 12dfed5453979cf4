"""Leases: the slots that tasks take, until their rows say that they are free."""

from __future__ import annotations

import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from itertools import batched
from typing import Any, NamedTuple, cast

from queue_app.core.records import ANY_LEASE
from queue_app.index.client import translated
from queue_app.index.keys import Keys
from queue_app.index.lazy import redis

#: So many entries go in one call at most.
BATCH = 500


class Lease(NamedTuple):
    """A slot in use: the task, its queue and the instant of the lease (index time, µs)."""

    id: uuid.UUID
    queue: str
    leased_at: int


class Leases(ABC):
    """What the index does with leases."""

    alias: str
    keys: Keys
    _client: redis.Redis

    @abstractmethod
    def _call(self, name: str, *args: Any) -> Any:
        """Run a script; return its reply."""

    def release(self, tasks: Iterable[tuple[uuid.UUID, str]]) -> int:
        """Free the slots of tasks (id, queue) whose rows are no longer executing, whoever held them."""
        return self._release((queue, task_id, "") for task_id, queue in tasks)

    def release_leases(self, leases: Iterable[Lease]) -> int:
        """Free the slots of tasks whose rows are no longer executing, each only if it is still that lease."""
        return self._release(
            (lease.queue, lease.id, "" if lease.leased_at == ANY_LEASE else lease.leased_at) for lease in leases
        )

    def _release(self, leases: Iterable[tuple[str, uuid.UUID, int | str]]) -> int:
        freed = 0
        for batch in batched(leases, BATCH):
            queues: dict[str, list[Any]] = {}
            for queue, task_id, leased_at in batch:
                queues.setdefault(queue, []).extend((task_id.bytes, leased_at))
            args: list[Any] = []
            for queue, pairs in queues.items():
                args += (queue, len(pairs) // 2, *pairs)
            freed += self._call("release", *args)
        return freed

    def restore_leases(self, tasks: Iterable[tuple[uuid.UUID, str]]) -> int:
        """Write the leases of tasks (id, lane) whose rows are executing; return how many were missing."""
        total = 0
        for batch in batched(tasks, BATCH):
            lanes: dict[str, list[bytes]] = {}
            for task_id, lane in batch:
                lanes.setdefault(lane, []).append(task_id.bytes)
            args: list[Any] = []
            for lane, ids in lanes.items():
                args += (lane, len(ids), *ids)
            total += self._call("restore_leases", *args)
        return total

    def withdraw(self, leases: Iterable[Lease]) -> int:
        """End leases that no row confirms, each only if it is still the same lease."""
        ended = 0
        for batch in batched(leases, BATCH):
            args = [part for lease in batch for part in (lease.queue, lease.id.bytes, lease.leased_at)]
            ended += self._call("withdraw", *args)
        return ended

    def last_proposal(self, worker_id: uuid.UUID) -> list[Lease]:
        """Return what is still leased of what a worker was proposed last."""
        reply = self._call("proposal", str(worker_id))
        pairs = zip(reply[1::2], reply[2::2], strict=True)
        return [Lease(uuid.UUID(bytes=task_id), queue.decode(), int(reply[0])) for task_id, queue in pairs]

    def missing_leases(self, tasks: Sequence[tuple[uuid.UUID, str]]) -> list[tuple[uuid.UUID, str]]:
        """Return those of the tasks (id, lane) that hold no lease."""
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
