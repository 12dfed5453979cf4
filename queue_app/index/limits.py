"""The copies of limits, thresholds and the rows' clock, by which the scripts decide."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from itertools import batched
from typing import Any

from queue_app.core.limits import Limits, Scope, gate_of
from queue_app.core.priorities import PROMOTED, Thresholds
from queue_app.index.calls import Calls, in_one_write, translated

#: Maximum gates per call of a script.
GATES = 200
#: Maximum steps in which gates are opened after an edit; each looks at about 100.
MAX_STEPS = 10_000

#: A gate, and the limits of its row; ``None`` when it has none.
type GateLimits = tuple[str, Limits | None]


def limit_arguments(gates: Iterable[GateLimits]) -> list[Any]:
    """Return the arguments of ``lua/set_limits.lua`` for these gates."""
    arguments: list[Any] = []
    for gate, limits in gates:
        parts = [part for item in limits.fields().items() for part in item] if limits else []
        arguments += (gate, int(limits is not None), len(parts), *parts)
    return arguments


class LimitCopies(Calls):
    """The part of the index that copies limits from their rows."""

    def set_limits(self, gate: str, limits: Limits | None) -> bool:
        """Copy the limits of a gate; return whether anything changed."""
        return self.copy_limits([(gate, limits)]) > 0

    def copy_limits(self, gates: Iterable[GateLimits]) -> int:
        """Copy the limits of gates; return how many of them changed.

        A first limit of a type, of keys or of users holds once all that runs has been counted, in steps. Many gates
        open in steps too; claims and the scheduler's tick continue with them should this process end.
        """
        return sum(map(self._copy_page, batched(gates, GATES)))

    def _copy_page(self, gates: tuple[GateLimits, ...]) -> int:
        changed = 0
        while gates:
            done, of_these, following = self._call("set_limits", *limit_arguments(gates))
            changed += of_these
            if following == b"count":
                self._scan("count_leases", gates[done][0])
                following = self._call("set_limits", *limit_arguments(gates[done : done + 1]))[2]
                changed, done = changed + 1, done + 1
            if following == b"forget":
                self._scan("count_leases", gates[done - 1][0])
            if following:
                self._open_gates()
            gates = gates[done:]
        return changed

    def _open_gates(self) -> None:
        for _ in range(MAX_STEPS):
            if not self._call("refill"):
                return

    def restart_rates(self, gates: Iterable[str]) -> None:
        """Let rates and delays be unused until now; the caller copies the limits again before claims are allowed."""
        with translated("limits", self.alias):
            for batch in batched(gates, GATES):
                in_one_write(self._client, *(("HDEL", self.keys.limits_of(gate), "since") for gate in batch))

    def limited(self) -> set[str]:
        """Return the gates with limits, except everything."""
        with translated("limits", self.alias):
            gates, queues = in_one_write(self._client, ("SMEMBERS", self.keys.limits), ("SMEMBERS", self.keys.limited))
        named, limited = self._names(self.keys.limits, gates), self._names(self.keys.limited, queues)
        of_users = {gate.removeprefix("u:") for gate in named if gate.startswith("u")}
        return {gate for gate in named if not gate.startswith("u")} | {
            gate_of(Scope.QUEUE, queue) for queue in of_users.union(limited)
        }

    def set_thresholds(self, thresholds: Thresholds) -> bool:
        """Copy the thresholds of promotion; return whether anything changed."""
        waits = [thresholds.get(band) for band in PROMOTED]
        return bool(self._call("set_thresholds", *("" if wait is None else wait for wait in waits)))

    def set_clock(self, at: datetime) -> bool:
        """Record the present time by PostgreSQL's clock; return whether the two clocks have come to differ."""
        return bool(self._call("set_clock", round(at.timestamp() * 1e6)))
