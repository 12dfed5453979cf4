"""One connection on which calls are sent before the answers to earlier ones are read.

What the server refused because it did not know the script is sent again. What a connection that
broke has left unanswered is sent again by ``send_again``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

from queue_app.index.lazy import redis

#: So many replies may be outstanding; then the sender waits for the first of them.
MAX_OUTSTANDING = 64


class Call(NamedTuple):
    """A script and its arguments, sent and not yet answered."""

    script: redis.commands.core.Script
    arguments: Sequence[Any]


class Line:
    """A connection, taken from the client's pool when first used; for one thread at a time."""

    def __init__(self, client: redis.Redis, prefix: str, scripts: Sequence[redis.commands.core.Script]) -> None:
        self._client = client
        self._prefix = prefix
        self._scripts = scripts  # that a server must know
        self.forget()

    def forget(self) -> None:
        """Start afresh without closing: a forked child must not touch its parent's connection."""
        self.connection: Any = None
        self.outstanding: deque[Call] = deque()

    def send_again(self, calls: Sequence[Call]) -> None:
        """Send the unanswered calls, and these, on a new connection."""
        unanswered = [*self.outstanding, *calls]
        self.drop()
        self.send(unanswered)

    def send(self, calls: Sequence[Call]) -> None:
        """Send calls in one write."""
        if self.connection is None:
            self.connection = self._client.connection_pool.get_connection()
            self._teach(self.connection)
        connection = self.connection
        packed = [
            part
            for script, arguments in calls
            for part in connection.pack_command("EVALSHA", script.sha, 1, self._prefix, *arguments)
        ]
        connection.send_packed_command([b"".join(packed)])  # each part would be a write of its own
        self.outstanding.extend(calls)

    def _teach(self, connection: Any) -> None:
        """Make the scripts known.

        A new connection may lead to a new server, whose refusal of a hint would be read only
        with the next one.
        """
        connection.send_packed_command(
            [part for script in self._scripts for part in connection.pack_command("SCRIPT", "LOAD", script.script)]
        )
        try:
            for _ in self._scripts:
                connection.read_response()
        except redis.ResponseError:
            self.drop()  # the second answer must not be taken for that of a hint
            raise

    def read(self, *, all_of_them: bool, wanted: Call | None = None) -> Any:
        """Read answers, those that have come or all; return the one to ``wanted``."""
        answer = None
        while self.outstanding and (
            all_of_them or len(self.outstanding) >= MAX_OUTSTANDING or self.connection.can_read(timeout=0)
        ):
            try:
                response = self.connection.read_response()
            except redis.exceptions.NoScriptError:
                call = self.outstanding.popleft()
                self._client.script_load(call.script.script)
                self.send([call])
            except redis.ResponseError:
                self.outstanding.popleft()
                raise
            else:
                if self.outstanding.popleft() is wanted:
                    answer = response
        return answer

    def drop(self) -> None:
        """Let go of the connection, and of what is unanswered on it."""
        connection, self.connection = self.connection, None
        self.outstanding.clear()
        if connection is not None:
            connection.disconnect()
            self._client.connection_pool.release(connection)
