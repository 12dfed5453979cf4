"""Connections to the one node of a Redis Cluster that holds the index.

All keys of the index lie under one hash tag, so in one slot, and a script stays on one node. For each new connection
the pool asks the known nodes which of them holds the slot. When a node replies that the slot has moved, or that the
node is a replica now, the connection is closed, and the next one asks again. So a plain client is enough.
"""

from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import redis
from redis.connection import Connection, ConnectionPool, SSLConnection
from redis.crc import key_slot
from redis.exceptions import AskError, ClusterDownError, MovedError, ReadOnlyError

from queue_app import conf

type Address = tuple[str, int]


class Locator:
    """Finds the node that holds the slot."""

    def __init__(self, nodes: Iterable[Address], slot: int, options: dict[str, Any], kind: type[Connection]) -> None:
        self.nodes = list(nodes)
        self._slot, self._options, self._kind = slot, options, kind

    def find(self) -> Address:
        """Return the address of the primary. Raises ``redis.ConnectionError`` when no node knows."""
        reason: Exception | None = None
        for node in list(self.nodes):
            try:
                return self._ask(node)
            except (redis.RedisError, OSError, LookupError) as error:
                reason = error
        raise redis.ConnectionError(f"no node of the cluster knows which node holds slot {self._slot}: {reason}")

    def _ask(self, node: Address) -> Address:
        connection = self._kind(**{**self._options, "host": node[0], "port": node[1], "decode_responses": True})
        try:
            connection.connect()  # type: ignore[no-untyped-call]
            connection.send_command("CLUSTER", "SLOTS")  # type: ignore[no-untyped-call]
            ranges: Any = connection.read_response()
        finally:
            with suppress(redis.RedisError, OSError):
                connection.disconnect()  # type: ignore[no-untyped-call]
        known = [(entry[0] or node[0], int(entry[1])) for part in ranges for entry in part[2:]]
        found = [part[2] for part in ranges if int(part[0]) <= self._slot <= int(part[1])]
        self.nodes = [*dict.fromkeys([*known, *self.nodes])]  # the configured nodes may be gone one day
        return found[0][0] or node[0], int(found[0][1])


class SlotConnection(Connection):
    """A connection that finds the node whenever it connects."""

    def __init__(self, *, locator: Locator, **options: Any) -> None:
        self._locator = locator
        super().__init__(**options)  # type: ignore[no-untyped-call]

    def connect(self) -> None:
        """Connect to the node that holds the slot now."""
        if self._sock is None:
            self.host, self.port = self._locator.find()
        super().connect()  # type: ignore[no-untyped-call]

    def read_response(self, *args: Any, **options: Any) -> Any:
        """Return the reply; raise ``redis.ConnectionError`` when the index is on another node."""
        try:
            return super().read_response(*args, **options)
        except (MovedError, AskError, ClusterDownError, ReadOnlyError) as error:
            self.disconnect()  # type: ignore[no-untyped-call]
            raise redis.ConnectionError(f"the index is on another node now: {error}") from error


class SlotSSLConnection(SlotConnection, SSLConnection):
    """A ``SlotConnection`` with TLS."""


class SlotConnectionPool(ConnectionPool):
    """A pool for ``CONNECTION_POOL_CLASS``; it asks ``LOCATION`` and ``nodes`` (pairs of host and port) first."""

    def __init__(self, *, nodes: Iterable[Address] = (), **options: Any) -> None:
        kind = SSLConnection if issubclass(options.pop("connection_class", Connection), SSLConnection) else Connection
        options.pop("db", None)  # a cluster has only one
        slot = key_slot(f"{{{conf.get().key_prefix}}}".encode())
        first = (options.get("host", "localhost"), int(options.get("port", 6379)))
        asking = {name: value for name, value in options.items() if name not in {"host", "port", "max_connections"}}
        locator = Locator([first, *map(tuple, nodes)], slot, asking, kind)  # type: ignore[list-item]
        slotted = SlotSSLConnection if kind is SSLConnection else SlotConnection
        super().__init__(connection_class=slotted, locator=locator, **options)
