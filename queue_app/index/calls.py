"""The ways to reach Redis (docs: explanation/database-and-redis-access)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import batched
from typing import Any

from queue_app import signals
from queue_app.core.events import counted
from queue_app.exceptions import IndexDamaged
from queue_app.index import scripts
from queue_app.index.client import connect, redis, unavailable
from queue_app.index.keys import Keys
from queue_app.index.notifier import Notifier, publish_arguments

#: Scripts that are never sent twice. A repeated claim would lease further tasks, and hide those of the first reply.
ONCE = frozenset({"claim"})
#: Maximum time (s) of what the loop of a worker calls, which takes some milliseconds. Then Redis may be frozen, and
#: claims read the rows.
WITHIN = {"claim": 1.0, "release": 1.5, "push": 1.5}
#: Maximum delay of the reply to a blocking command; after that the connection counts as broken.
LATE_SECONDS = 1.0
#: Maximum time that a blocking command waits, so that a frozen server is soon found.
BLOCK_SECONDS = 1.0
#: Maximum queues per call of a script that walks over queues.
QUEUES = 200


@contextmanager
def translated(operation: str, alias: str) -> Iterator[None]:
    """Turn every error of the client library into ``IndexUnavailable``."""
    try:
        yield
    except redis.RedisError as error:
        raise unavailable(operation, alias, error) from error


@contextmanager
def readable(operation: str) -> Iterator[None]:
    """Turn the error of a value without sense into ``IndexDamaged``."""
    try:
        yield
    except (ValueError, LookupError, OverflowError) as error:
        raise IndexDamaged(f"{operation}: the index holds a value without sense: {error}") from error


def in_one_write(client: redis.Redis, *commands: Sequence[Any], within: float | None = None) -> list[Any]:
    """Run commands in one round trip; return their replies. As a pipeline of the client, without its overhead.

    Raises an error if the first reply takes longer than ``within`` seconds.
    """
    pool = client.connection_pool
    connection: Any = pool.get_connection()
    try:
        connection.send_packed_command([b"".join(part for each in commands for part in connection.pack_command(*each))])
        if within is not None:
            _await_reply(connection, within)
        return [connection.read_response() for _ in commands]
    except BaseException:
        connection.disconnect()  # an unread reply must not be taken for the reply to a later command
        raise
    finally:
        pool.release(connection)


def _await_reply(connection: Any, seconds: float) -> None:
    """Wait for the next reply; the caller closes the connection if this raises."""
    if not connection.can_read(seconds):
        raise redis.TimeoutError(f"no answer within {seconds:g} s")


def blocking(client: redis.Redis, seconds: float, *commands: Sequence[Any]) -> Any:
    """Run commands, the last of which blocks for up to ``seconds`` on the server; return its reply, ``None`` if empty.

    The client would give up after the timeout of its sockets, which suits other commands.
    """
    pool = client.connection_pool
    connection: Any = pool.get_connection()
    try:
        connection.send_packed_command([b"".join(part for each in commands for part in connection.pack_command(*each))])
        for _ in commands[:-1]:
            _await_reply(connection, LATE_SECONDS)
            connection.read_response()
        _await_reply(connection, seconds + LATE_SECONDS)
        return connection.read_response()
    except BaseException:
        connection.disconnect()  # the reply may still come
        raise
    finally:
        pool.release(connection)


class Scripts(dict[str, Any]):
    """The scripts by name, registered with a client at their first use."""

    def __init__(self, client: redis.Redis) -> None:
        super().__init__()
        self._client = client

    def __missing__(self, name: str) -> redis.commands.core.Script:
        script: redis.commands.core.Script = self._client.register_script(scripts.source(name))
        self[name] = script
        return script


class Calls:
    """The connections of an index, and how it calls scripts."""

    def __init__(self, alias: str, prefix: str) -> None:
        self.alias = alias
        self.keys = Keys(prefix)
        self._client: redis.Redis = connect(alias)
        self._scripts = Scripts(self._client)
        self._notifier = Notifier(self._client, self.keys.prefix, self._scripts["push"], self._scripts["publish"])

    def _call(self, name: str, *args: Any) -> Any:
        script, once, within = self._scripts[name], name in ONCE, WITHIN.get(name)
        try:
            if self._notifier.has_unconfirmed_entries:  # they go first, so that this process sees its own writes
                return self._notifier.call(script, args, once=once, within=within)
            return self._run_once(script, args, within) if once else self._run(script, args, within)
        except redis.RedisError as error:
            raise unavailable(name, self.alias, error) from error

    def _run(self, script: redis.commands.core.Script, args: Sequence[Any], within: float | None) -> Any:
        """Run a script without the overhead of the client, which doubles the time of a short call."""
        try:
            return in_one_write(self._client, ("EVALSHA", script.sha, 1, self.keys.prefix, *args), within=within)[0]
        except (redis.exceptions.NoScriptError, redis.ConnectionError):
            return script(keys=[self.keys.prefix], args=args)  # the client loads the script, or connects again

    def _run_once(self, script: redis.commands.core.Script, args: Sequence[Any], within: float | None) -> Any:
        """Run a script without the client, which repeats a command whose reply was lost."""
        command = ("EVALSHA", script.sha, 1, self.keys.prefix, *args)
        try:
            return in_one_write(self._client, command, within=within)[0]
        except redis.exceptions.NoScriptError:  # so it has not run
            self._client.script_load(script.script)
            return in_one_write(self._client, command, within=within)[0]

    def _total(self, name: str, calls: Iterable[Sequence[Any]]) -> int:
        """Run a script once for each list of arguments; return the sum of its replies."""
        return sum(int(self._call(name, *arguments)) for arguments in calls)

    def _scan(self, name: str, *args: Any) -> list[Sequence[Any]]:
        """Call a script that takes and returns a cursor until it is done; return its pages."""
        pages: list[Sequence[Any]] = []
        cursor: Any = 0
        while True:
            reply = self._call(name, *args, cursor)
            cursor, page = (reply[0], reply[1:]) if isinstance(reply, list) else (reply, ())
            pages.append(page)
            if int(cursor) == 0:
                return pages

    def _walk(self, name: str, queues: Iterable[str], *args: Any) -> Iterator[list[Any]]:
        """Call a script that walks over queues (``lua/lib/walk.lua``) until all are done; yield its replies."""
        for batch in batched(queues, QUEUES):
            left, cursor = batch, 0
            while left:
                done, cursor, *page = self._call(name, *args, cursor, *left)
                yield page
                left = left[int(done) :]

    # -- members that cannot be read ----------------------------------------------

    def _names(self, key: str, members: Iterable[bytes]) -> list[str]:
        """Return the members of a set as text; remove members that are no text."""
        names, junk = [], []
        for member in members:
            try:
                names.append(member.decode())
            except UnicodeDecodeError:
                junk.append(member)
        if junk:
            self._drop("SREM", key, junk)
        return names

    def _drop(self, command: str, key: str, members: Sequence[bytes]) -> None:
        with translated("drop", self.alias):
            in_one_write(self._client, (command, key, *members))
        self._count_unreadable(len(members))

    def _count_unreadable(self, number: int) -> None:
        signals.index_repaired.send(None, kind="unreadable", count=number)
        self._call("publish", *publish_arguments([counted({"repair:unreadable": number})]))
