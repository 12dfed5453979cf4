"""Leases: the slots that tasks take until their rows say that they are free."""

import uuid
from collections.abc import Iterable, Iterator, Set as AbstractSet
from itertools import batched
from typing import Any, cast

from queue_app.core.records import Lease
from queue_app.index.calls import Calls, translated
from queue_app.index.client import text
from queue_app.index.keys import KINDS
from queue_app.index.notifier import ScriptCall

#: Maximum entries per call of a script, so that no script blocks the server for long.
BATCH = 500
#: Keys that one step of a scan looks at.
SCANNED = 1000
#: Stamps are µs, and exact as the scores of a sorted set.
MAX_STAMP = 2**53


def is_id(member: bytes) -> bool:
    """Whether a member can be the id of a task."""
    return len(member) == 16  # noqa: PLR2004 - bytes of a UUID


class Leases(Calls):
    """The part of the index that holds leases."""

    def release(self, leases: Iterable[Lease]) -> int:
        """Free slots, each only if it is still held under that lease; return how many were."""
        return self._total("release", map(_grouped, batched(leases, BATCH)))

    def post_release(self, leases: Iterable[Lease]) -> None:
        """Free slots as ``release`` does, without waiting for the reply; this process makes its next call after it."""
        with translated("release", self.alias):
            script = self._scripts["release"]
            self._notifier.post([ScriptCall(script, _grouped(batch)) for batch in batched(leases, BATCH)])

    def restore_leases(self, leases: Iterable[Lease]) -> int:
        """Write the leases of executing rows; return how many were missing, incomplete or different."""
        return self._total("restore_leases", map(_grouped, batched(leases, BATCH)))

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
        pairs = [pair for pair in zip(reply[1::2], reply[2::2], strict=True) if is_id(pair[0])]
        return [Lease(uuid.UUID(bytes=task_id), queue.decode(), int(reply[0])) for task_id, queue in pairs]

    def leased(self, cursor: int) -> tuple[int, list[uuid.UUID]]:
        """Return (where to continue, 0 at the end; about ``BATCH`` tasks that hold a lease)."""
        with translated("leases", self.alias):
            cursor, page = self._client.hscan(self.keys.leases, cursor, count=BATCH)
        return cursor, [uuid.UUID(bytes=task_id) for task_id in cast("dict[bytes, bytes]", page) if is_id(task_id)]

    def leased_queues(self, queues: Iterable[str]) -> list[str]:
        """Return those of the queues in which tasks hold leases."""
        found = (self._call("leased_queues", *batch) for batch in batched(queues, SCANNED))
        return [text(queue) for reply in found for queue in reply]

    def leases(self, queue: str) -> Iterator[Lease]:
        """Yield the leases of a queue, in pages."""
        cursor = 0
        while True:
            with translated("leases", self.alias):
                cursor, page = self._client.zscan(self.keys.queue_leases(queue), cursor, count=BATCH)
            junk = []
            for task_id, leased_at in cast("list[tuple[bytes, float]]", page):
                if is_id(task_id) and 0 < leased_at < MAX_STAMP and leased_at == int(leased_at):
                    yield Lease(uuid.UUID(bytes=task_id), queue, int(leased_at))
                else:
                    junk.append((queue, task_id, leased_at))
            self._drop_leases(junk)
            if cursor == 0:
                return

    def incomplete_leases(self, complete: AbstractSet[uuid.UUID]) -> list[Lease]:
        """Return the leases that have lost their stamp: all in the index that are not among the ``complete`` ones."""
        with translated("leases", self.alias):
            found = dict(cast("Iterable[tuple[bytes, bytes]]", self._client.hscan_iter(self.keys.leases, count=BATCH)))
        if junk := [key for key in found if not is_id(key)]:
            self._drop("HDEL", self.keys.leases, junk)
        leases = [Lease(uuid.UUID(bytes=key), text(lane), 0) for key, lane in found.items() if is_id(key)]
        return [lease for lease in leases if lease.id not in complete]

    def look_through(self, cursor: int) -> tuple[int, int, list[str]]:
        """Look at a bounded part of the keys; remove members without a lease from gates.

        Returns (where to continue, 0 at the end; how many members were removed; keys of the wrong type).
        """
        with translated("leases", self.alias):
            cursor, found = self._client.scan(cursor, match=self.keys.everything, count=SCANNED)
        keys = cast("list[bytes]", found)
        wrong, removed = self.wrong_types(keys), 0
        for key in set(keys) - set(wrong):
            if self.keys.kind_of(key) == "held:":
                removed += self._leave_gate(key)
        return cursor, removed, [text(key) for key in wrong]

    def _leave_gate(self, key: bytes) -> int:
        gate = text(key).removeprefix(self.keys.held(""))
        with translated("leases", self.alias):
            members = list(self._client.sscan_iter(key, count=BATCH))
        return sum(int(self._call("leave_gate", gate, *batch)) for batch in batched(members, BATCH))

    def wrong_types(self, keys: Iterable[bytes]) -> list[bytes]:
        """Return the keys that have another type than their kind."""
        wanted = [(key, KINDS[kind].type.encode()) for key in keys if (kind := self.keys.kind_of(key))]
        with translated("type", self.alias), self._client.pipeline(transaction=False) as pipe:
            for key, _ in wanted:
                pipe.type(key)
            found = pipe.execute()
        return [key for (key, right), actual in zip(wanted, found, strict=True) if actual not in (right, b"none")]

    # -- members that cannot be read ----------------------------------------------

    def _drop_leases(self, leases: Iterable[tuple[str, bytes, float]]) -> None:
        """End leases (queue, id, stamp) whose id or stamp makes no sense."""
        for queue, task_id, leased_at in leases:
            self._call("release", queue, 1, task_id, repr(leased_at))
            self._count_unreadable(1)


def _grouped(leases: Iterable[Lease]) -> list[Any]:
    """Return the arguments of a script: each lane once, the number of its leases, and their ids and stamps."""
    lanes: dict[str, list[Any]] = {}
    for task_id, lane, leased_at in leases:
        lanes.setdefault(lane, []).extend((task_id.bytes, leased_at))
    return [part for lane, found in lanes.items() for part in (lane, len(found) // 2, *found)]
