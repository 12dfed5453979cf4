"""Where a task stands in the index, and the gates that it must pass to start."""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Self

_SCOPES = {"a": "everything", "q": "queue", "t": "type", "k": "key", "u": "user"}
#: Separates queue and user in the name of a user's gate.
_USER_SEPARATOR = "\x1e"


@dataclass(frozen=True, slots=True)
class GateState:
    """One gate: ``room`` tasks may start now (``None``: unlimited). ``next_at`` is set if time alone opens the gate."""

    scope: str  # everything, queue, type, key, user
    name: str
    room: int | None
    next_at: datetime | None
    used: int
    cap: int | None
    paused: bool
    throttled_until: datetime | None
    burst: int | None  # starts that a full bucket holds
    interval: float | None  # seconds between two starts
    holders: tuple[uuid.UUID, ...]  # some tasks that hold the slots of a gate at its cap

    @property
    def is_closed(self) -> bool:
        return self.room is not None and self.room <= 0

    @classmethod
    def from_reply(cls, reply: Sequence[Any]) -> Self:
        name = reply[0].decode()
        room, next_at, used, cap = (_number(part) for part in reply[1:5])
        kind, _, rest = name.partition(":")
        return cls(
            scope=_SCOPES[kind],
            name=rest.rpartition(_USER_SEPARATOR)[2] if kind == "u" else rest,
            room=room,
            next_at=_instant(next_at),
            used=used or 0,
            cap=cap,
            paused=reply[5] == b"1",
            throttled_until=_instant(_number(reply[6])),
            burst=_number(reply[7]),
            interval=None if (interval := _number(reply[8])) is None else interval / 1e6,
            holders=tuple(uuid.UUID(bytes=task_id) for task_id in reply[9:] if len(task_id) == 16),  # noqa: PLR2004
        )


@dataclass(frozen=True, slots=True)
class Placement:
    """What the index knows of one task: it ``waits`` in its lane, ``is_leased``, or is not indexed."""

    state: str  # of the generation: ready, loading, rebuilding, missing
    waits: bool
    is_leased: bool
    turns: str  # who takes turns in its queue: user, key, or ''
    own_ahead: int  # tasks of the same user or key before it
    gates: tuple[GateState, ...]

    @classmethod
    def from_reply(cls, reply: Sequence[Any]) -> Self:
        """Return the placement that ``lua/explain.lua`` replied."""
        state, _number_of_it, place, leased, turns, own_ahead, *gates = reply
        states = tuple(map(GateState.from_reply, gates))
        return cls(state.decode(), place != b"", leased != b"", turns.decode(), own_ahead, states)


def _number(part: Any) -> int | None:
    return None if part in (b"", "") else int(part)


def _instant(at: int | None) -> datetime | None:
    return None if at is None else datetime.fromtimestamp(at / 1e6, UTC)
