"""One connection on which calls are sent before the replies to earlier ones are read.

A call that the server refuses because it does not know the script is sent again. ``resend`` sends calls again that a
broken connection left unanswered.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

from queue_app.index.client import redis

#: Maximum number of unanswered calls; then the sender waits for the first reply.
MAX_UNANSWERED = 64


class ScriptCall(NamedTuple):
    """A script and its arguments, sent and not yet answered."""

    script: redis.commands.core.Script
    arguments: Sequence[Any]


class Pipeline:
    """A connection, taken from the client's pool when first used; for one thread at a time."""

    def __init__(self, client: redis.Redis, prefix: str, scripts: Sequence[redis.commands.core.Script]) -> None:
        self._client = client
        self._prefix = prefix
        self._scripts = list(scripts)  # loaded on each new connection
        self.reset()

    def reset(self) -> None:
        """Start afresh without closing: a forked child must not touch its parent's connection."""
        self.connection: Any = None
        self.unanswered: deque[ScriptCall] = deque()

    def resend(self, calls: Sequence[ScriptCall]) -> None:
        """Send the unanswered calls, then these, on a new connection."""
        unanswered = [*self.unanswered, *calls]
        self.disconnect()
        self.send(unanswered)

    def send(self, calls: Sequence[ScriptCall]) -> None:
        """Send calls in one write; raise ``redis.ConnectionError`` if the connection is broken."""
        if self.connection is None:
            self.connection = self._client.connection_pool.get_connection()
            self._load_scripts(self.connection)
        elif not self.unanswered:
            self.connection.can_read(timeout=0)  # raises if the server closed it; the write would not
        connection = self.connection
        packed = [
            part
            for script, arguments in calls
            for part in connection.pack_command("EVALSHA", script.sha, 1, self._prefix, *arguments)
        ]
        connection.send_packed_command([b"".join(packed)])  # each part would be a write of its own
        self.unanswered.extend(calls)

    def load(self, script: redis.commands.core.Script) -> None:
        """Load a script before its first call: a server that refuses the call would run the next one before it."""
        if script not in self._scripts:
            self._client.script_load(script.script)
            self._scripts.append(script)

    def _load_scripts(self, connection: Any) -> None:
        """Load the scripts: a new connection may lead to a new server, which would refuse the first call."""
        connection.send_packed_command(
            [part for script in self._scripts for part in connection.pack_command("SCRIPT", "LOAD", script.script)]
        )
        try:
            for _ in self._scripts:
                connection.read_response()
        except redis.ResponseError:
            self.disconnect()  # the second reply must not be taken for the reply to a call
            raise

    def read(self, *, wait: bool, wanted: ScriptCall | None = None) -> Any:
        """Read the replies that have arrived, or wait for all; return the one to ``wanted``."""
        answer = None
        while self.unanswered and (
            wait or len(self.unanswered) >= MAX_UNANSWERED or self.connection.can_read(timeout=0)
        ):
            try:
                response = self.connection.read_response()
            except redis.exceptions.NoScriptError:
                call = self.unanswered.popleft()
                self._client.script_load(call.script.script)
                self.send([call])
            except redis.ResponseError:
                self.unanswered.popleft()
                raise
            else:
                if self.unanswered.popleft() is wanted:
                    answer = response
        return answer

    def forget(self, call: ScriptCall | None) -> None:
        """Do not send a call again, and do not wait for its reply; the connection must be broken."""
        self.unanswered = deque(each for each in self.unanswered if each is not call)

    def disconnect(self) -> None:
        connection, self.connection = self.connection, None
        self.unanswered.clear()
        if connection is not None:
            connection.disconnect()
            self._client.connection_pool.release(connection)
