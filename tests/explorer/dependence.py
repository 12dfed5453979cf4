"""Which steps of two actors may change each other's outcome.

Two steps that do not can be swapped. So a turn need not pass on before a step on which nothing of the other actor
depends: passing it on after that step does the same.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from typing import Final

from tests.explorer.controller import Step
from tests.explorer.gates import REDIS

#: Scripts and commands that read and write nothing by which a transition is decided.
_TELLS_ONLY: Final = frozenset({"publish", "TIME", "RPUSH", "EXPIRE"})
_LOCKS: Final = frozenset({"hold"})
_TABLE: Final = re.compile(r"\bqueue_app_\w+")
_WRITES: Final = re.compile(r"\b(INSERT|UPDATE|DELETE|COPY)\b")


@cache
def _touched(what: str) -> tuple[frozenset[str], bool] | None:
    """Return the tables that a statement touches and whether it writes; ``None`` for what may touch all of them."""
    if "advisory" in what:
        return None
    tables = frozenset(_TABLE.findall(what))
    if not tables:
        return (tables, False) if what.startswith(("SELECT", "SAVEPOINT", "RELEASE", "SET")) else None
    return tables, _WRITES.search(what) is not None


def depend(one: Step, other: Step) -> bool:
    """Whether the order of the two steps may matter."""
    if one.server != other.server or not one.server:
        return False
    if one.server == REDIS:
        names = [set(step.what.split("+")) - _TELLS_ONLY for step in (one, other)]
        if not all(names):
            return False
        return any(names[0] & _LOCKS) == any(names[1] & _LOCKS) if any(each <= _LOCKS for each in names) else True
    touched = [_touched(step.what) for step in (one, other)]
    if touched[0] is None or touched[1] is None:
        return True
    (ours, we_write), (theirs, they_write) = touched[0], touched[1]
    return bool(ours & theirs) and (we_write or they_write)


def matters(step: Step, others: Sequence[Step]) -> bool:
    """Whether anything that the other actor does may depend on the step."""
    return any(depend(step, other) for other in others)
