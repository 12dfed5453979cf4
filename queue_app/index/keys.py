"""Keys of the index that Python uses itself; ``lua/lib/keys.lua`` describes all keys and builds the others."""

#: Prefixes of the keys that a rebuild keeps: data that no row holds, and the copies of limits. Pushes during the
#: rebuild need the limits to find the lane of a task.
_KEPT = (
    *(b":generation", b":lock:", b":wake:", b":tell:", b":counters", b":events", b":requests", b":bucket:"),
    *(b":throttle:", b":settings", b":queue:", b":limit:", b":limits", b":limited", b":weights:"),
)


class Keys:
    """The keys under one prefix, all in one hash slot of a cluster."""

    def __init__(self, prefix: str) -> None:
        self.prefix = f"{{{prefix}}}"
        self.everything = f"{self.prefix}:*"  # the pattern of all keys
        self.generation = f"{self.prefix}:generation"  # hash, with the stamp of the last claim
        self.events = f"{self.prefix}:events"
        self.requests = f"{self.prefix}:requests"
        self.poison = f"{self.prefix}:requests:poison"
        self.queues = f"{self.prefix}:queues"
        self.profiles = f"{self.prefix}:profiles"
        self.leases = f"{self.prefix}:leases"
        self.limits = f"{self.prefix}:limits"
        self.limited = f"{self.prefix}:limited"

    def queue_leases(self, queue: str) -> str:
        """The sorted set of a queue's leases: id -> leased at (µs)."""
        return f"{self.prefix}:leases:{queue}"

    def held(self, gate: str) -> str:
        """The set of the leased ids that passed a gate."""
        return f"{self.prefix}:held:{gate}"

    def wake(self, worker_id: str) -> str:
        """The list on which a worker waits for its wake-up call."""
        return f"{self.prefix}:wake:{worker_id}"

    def tell(self, worker_id: str) -> str:
        """The list on which a worker is notified that one of its rows changed."""
        return f"{self.prefix}:tell:{worker_id}"

    def lock(self, name: str) -> str:
        """The token of the holder of a lock, with expiry."""
        return f"{self.prefix}:lock:{name}"

    def throttle(self, name: str) -> str:
        """The number of API calls of one caller in one window."""
        return f"{self.prefix}:throttle:{name}"

    def survives_rebuild(self, key: bytes) -> bool:
        """Whether a rebuild keeps the key."""
        return key.removeprefix(self.prefix.encode()).startswith(_KEPT)
