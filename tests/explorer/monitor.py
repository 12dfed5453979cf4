"""The keys that each message to Valkey read and wrote, as the server itself tells them.

MONITOR reports every command, also those that a script calls, so nothing has to be known of the scripts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import count
from typing import Final

import redis

from tests.explorer.dependence import ANYTHING, NOTHING, Footprint, Place, Step
from tests.explorer.gates import BREAK, CLOCK_KEY, DIE, REDIS, name_of_command

#: What a script reads that asks for the time.
READS_CLOCK: Final[Place] = (CLOCK_KEY, "")
_LINE: Final = re.compile(rb"^\+[\d.]+ \[\d+ ([^\]]*)\] (.*)$")
_PART: Final = re.compile(rb'"((?:[^"\\]|\\.)*)"')
#: Keys by which no transition is decided: what is told to others, and counted.
_TELLS_ONLY: Final = frozenset({"events", "counters", "wake", "tell"})
_BESIDE: Final = frozenset({"SCRIPT", "HELLO", "CLIENT", "SELECT", "AUTH", "EVALSHA", "EVAL", "MULTI", "EXEC"})
#: Commands that touch one member of a key.
_ONE_MEMBER: Final = frozenset({"HGET", "HEXISTS", "SISMEMBER", "ZSCORE", "HDEL", "SADD", "SREM", "ZREM"})
_OWN_MEMBER: Final = {"HSET": (2, 2), "HMGET": (2, 1), "HINCRBY": (2, 3), "HINCRBYFLOAT": (2, 3)}


class Monitor:
    """Reads what the server reports, between two marks."""

    def __init__(self, client: redis.Redis, prefix: str) -> None:
        self._client, self._prefix = client, f"{prefix}:".encode()
        # A connection of the driver authenticates; what it then reads is not parsed by the driver, which takes long.
        self._connection = client.connection_pool.get_connection()
        self._connection.send_command("MONITOR")
        self._connection.read_response()
        self._socket = self._connection._sock
        self._rest = b""
        self._marks = count()
        self._commands = {str(name).upper(): each for name, each in client.command().items()}
        self.mark()

    def close(self) -> None:
        """Close the connection."""
        self._connection.disconnect()

    def mark(self) -> bytes:
        """Return what was reported since the last mark."""
        mark = f"explorer-mark-{next(self._marks)}-".encode()
        self._client.echo(mark)
        found = self._rest
        while (at := found.find(mark)) < 0 or b"\n" not in found[at:]:
            more = self._socket.recv(1 << 20)
            if not more:
                raise AssertionError("Valkey ended the connection that reports its commands.")
            found += more
        self._rest = found[found.index(b"\n", at) + 1 :]
        return found[: found.rindex(b"\n", 0, at) + 1] if b"\n" in found[:at] else b""

    def note(self, trace: Sequence[Step]) -> None:
        """Give the steps on Valkey what they touched since the last mark."""
        reported = list(self._messages(self.mark()))
        for step in trace:
            if step.server != REDIS:
                continue
            if step.note in (DIE, BREAK):
                step.touched = NOTHING
                continue
            step.touched = NOTHING
            for name in step.what.split("+"):
                if not reported or reported[0][0] != name:  # not in the order in which they were sent
                    step.touched, reported = ANYTHING, []
                    break
                step.touched |= reported.pop(0)[1]
            step.lasting = bool(step.touched.writes)

    def _messages(self, report: bytes) -> Iterator[tuple[str, Footprint]]:
        """Yield the name and the footprint of each message."""
        name, reads, writes = "", set[Place](), set[Place]()
        for line in report.split(b"\r\n"):
            match = _LINE.match(line)
            if match is None:
                continue
            command, _, rest = match[2].partition(b" ")
            verb = command.strip(b'"').decode().upper()
            if match[1] != b"lua":
                if verb in ("SCRIPT", "HELLO", "CLIENT", "SELECT", "AUTH", "ECHO"):
                    continue
                if name:
                    yield name, Footprint(frozenset(reads), frozenset(writes))
                name, reads, writes = name_of_command(verb, rest[1:41].decode()), set(), set()
            if verb not in _BESIDE:
                self._add(verb, rest, reads, writes)
        if name:
            yield name, Footprint(frozenset(reads), frozenset(writes))

    def _add(self, verb: str, rest: bytes, reads: set[Place], writes: set[Place]) -> None:
        about = self._commands[verb]
        is_read, first, last = "readonly" in about["flags"], about["first_key_pos"], about["last_key_pos"]
        if not first:
            if verb in ("SCAN", "KEYS", "FLUSHALL", "FLUSHDB"):
                (reads if is_read else writes).add(("*", ""))
            return
        if first == last == 1 and verb not in _OWN_MEMBER and verb not in _ONE_MEMBER:
            parts = [part[1] for part, _ in zip(_PART.finditer(rest), range(1), strict=False)]
        else:
            parts = _PART.findall(rest)
        keys = parts[first - 1 : (last if last > 0 else len(parts) + 1 + last) : about["step_count"] or 1]
        for key in keys:
            name = key.removeprefix(self._prefix).decode()
            if name.partition(":")[0] in _TELLS_ONLY:
                continue
            places = [(name, member) for member in self._members(verb, parts)] or [(name, "")]
            reads.update(places)
            if not is_read:
                writes.update(places)

    def _members(self, verb: str, parts: list[bytes]) -> list[str]:
        if verb in _ONE_MEMBER:
            return [repr(part) for part in parts[1:]]
        if verb in _OWN_MEMBER:
            begin, step = _OWN_MEMBER[verb]
            return [repr(part) for part in parts[begin - 1 :: step]]
        return []
