"""Keys of the index that Python touches by itself; ``lua/lib/keys.lua`` builds all others."""

from __future__ import annotations

#: Beginnings of keys that a rebuild could not write again.
_NOT_FROM_ROWS = (
    *(b":generation", b":lock:", b":wake:", b":tell:", b":counters", b":events", b":requests", b":bucket:"),
    b":throttle:",
)
#: Beginnings of keys with copies of limits: they stay, so that lanes are right while the index is rebuilt.
_LIMITS = (b":settings", b":queue:", b":limit:", b":limits", b":limited", b":weights:")


class Keys:
    """The keys under one prefix, all in one hash slot of a cluster."""

    __slots__ = ("prefix",)

    def __init__(self, prefix: str) -> None:
        self.prefix = f"{{{prefix}}}"

    def wake(self, worker_id: str) -> str:
        """The list on which a worker waits for its wake-up call."""
        return f"{self.prefix}:wake:{worker_id}"

    def tell(self, worker_id: str) -> str:
        """The list on which a worker is told to look into its rows."""
        return f"{self.prefix}:tell:{worker_id}"

    def throttle(self, name: str) -> str:
        """How often somebody called the API in one window."""
        return f"{self.prefix}:throttle:{name}"

    @property
    def events(self) -> str:
        """The stream of what happened to tasks, capped."""
        return f"{self.prefix}:events"

    @property
    def requests(self) -> str:
        """The stream of tasks that other services ask for."""
        return f"{self.prefix}:requests"

    @property
    def poison(self) -> str:
        """The stream of requests that were set aside, capped."""
        return f"{self.prefix}:requests:poison"

    @property
    def queues(self) -> str:
        """The set of queues that have, or had, a lane."""
        return f"{self.prefix}:queues"

    @property
    def profiles(self) -> str:
        """The set of profiles of registered workers."""
        return f"{self.prefix}:profiles"

    def queue_leases(self, queue: str) -> str:
        """The sorted set of a queue's leases: id -> leased at (µs)."""
        return f"{self.prefix}:leases:{queue}"

    @property
    def leases(self) -> str:
        """The hash of every leased id: id -> its lane."""
        return f"{self.prefix}:leases"

    @property
    def limits(self) -> str:
        """The set of gates of types and keys that have limits."""
        return f"{self.prefix}:limits"

    @property
    def limited(self) -> str:
        """The set of queues that have limits."""
        return f"{self.prefix}:limited"

    @property
    def counters(self) -> str:
        """The hash of what happened, and how often, since Redis was emptied."""
        return f"{self.prefix}:counters"

    def survives_rebuild(self, key: bytes) -> bool:
        """Whether a rebuild leaves the key alone: the generation itself, and what no row holds."""
        return key.removeprefix(self.prefix.encode()).startswith(_NOT_FROM_ROWS + _LIMITS)

    @property
    def everything(self) -> str:
        """A pattern that matches every key of the index."""
        return f"{self.prefix}:*"
