"""What a step read and wrote, and so which steps of two actors may change each other's outcome.

Two steps that touch nothing in common can be swapped without a difference. In PostgreSQL a statement touches the tables
that it names, and a commit writes what its transaction wrote. In Valkey a script touches the keys that it really read
and wrote, as MONITOR tells them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final, NamedTuple

from tests.explorer.gates import BREAK, DIE, POSTGRESQL

#: A table, or a key with the member of it that a command names ("" for all of it).
type Place = tuple[str, str]


class Footprint(NamedTuple):
    """What a step read, and what it wrote or locked."""

    reads: frozenset[Place] = frozenset()
    writes: frozenset[Place] = frozenset()

    def __or__(self, other: Footprint) -> Footprint:  # type: ignore[override]
        return Footprint(self.reads | other.reads, self.writes | other.writes)


NOTHING: Final = Footprint()
#: Meets everything: of a step that nothing is known of.
ANYTHING: Final = Footprint(writes=frozenset({("*", "")}))

#: What may become of an actor after its message: it is held inside the statement, or waits for a lock.
HELD, WAITS = "held", "waits"


@dataclass(slots=True)
class Step:
    """A message that an actor sent."""

    actor: str
    server: str
    what: str
    note: str = ""
    touched: Footprint = NOTHING
    in_transaction: bool = False  # after the message
    lasting: bool = False  # it changed what stays although the actor dies

    @property
    def waited(self) -> bool:
        """Whether the message took effect later than it was sent."""
        return self.note in (HELD, WAITS)

    def __str__(self) -> str:
        return f"{self.actor:<14} {self.server:<10} {self.what[:70]}{f'   [{self.note}]' if self.note else ''}"


_TABLE: Final = re.compile(r"\b(?:queue_app|django|auth)_\w+|\bpg_class\b")
_CHANGES_TASK: Final = re.compile(r"\b(UPDATE|INSERT INTO|COPY) \"?queue_app_task\b")
_WRITES: Final = re.compile(r"\b(?:UPDATE|INSERT INTO|DELETE FROM|COPY|TRUNCATE) (?:ONLY )?\"?(?!SET\b)(\w+)")
_LOCKS: Final = re.compile(r"\bFOR (?:NO KEY )?(?:UPDATE|SHARE|KEY SHARE)\b")
_HARMLESS: Final = re.compile(
    r"^(SELECT|WITH|SAVEPOINT|RELEASE|ROLLBACK|SET|BEGIN|COMMIT|commit_gen|rollback_gen|exit_gen)\b"
)

#: What the functions of the index in PostgreSQL touch, as statements of their own.
_FUNCTIONS: Final = {
    "queue_app_pick_1": "SELECT pg_advisory_xact_lock; UPDATE queue_app_rows_lane; UPDATE queue_app_rows_gate;"
    " UPDATE queue_app_rows_state; UPDATE queue_app_rows_turn; SELECT queue_app_task FOR UPDATE;"
    " SELECT queue_app_indexgeneration queue_app_queue queue_app_limit queue_app_runtimesettings queue_app_worker",
    "queue_app_claimed_1": "UPDATE queue_app_rows_call; SELECT queue_app_rows_lane",
    "queue_app_wake_1": "UPDATE queue_app_rows_call; SELECT queue_app_rows_lane queue_app_worker queue_app_task",
}


@cache
def of_statement(what: str) -> Footprint:
    """Return what a statement touches, or a group of them."""
    reads, writes = set[Place](), set[Place]()
    for name, touched in _FUNCTIONS.items():
        what = what.replace(name, f"; {touched}; ")
    for part in filter(None, what.split("; ")):
        tables = {(table, "") for table in _TABLE.findall(part)}
        if not tables and not _HARMLESS.match(part):
            return ANYTHING
        reads |= tables
        writes |= tables if _LOCKS.search(part) else {(table, "") for table in _WRITES.findall(part)}
        if "advisory" in part:
            writes.add(("advisory", ""))
    return Footprint(frozenset(reads), frozenset(writes))


def note_transactions(trace: Iterable[Step]) -> None:
    """Give the steps on PostgreSQL their footprints: what ends a transaction writes all that the transaction wrote."""
    written: dict[str, frozenset[Place]] = {}
    for step in trace:
        if step.server != POSTGRESQL:
            continue
        step.touched = of_statement(step.what)
        if step.note == BREAK:
            step.touched = Footprint(step.touched.reads)
        before = written.pop(step.actor, frozenset())
        if step.note == DIE or not step.in_transaction:
            step.touched |= Footprint(writes=before)
            step.lasting = step.note not in (DIE, BREAK) and bool(step.touched.writes)
        else:
            written[step.actor] = before | step.touched.writes


def depend(one: Step, other: Step) -> bool:
    """Whether the order of the two steps may matter."""
    if not one.server or not other.server:
        return False
    if one.waited or other.waited:  # they have met already
        return True
    return _meet(one.touched.writes, other.touched.reads | other.touched.writes) or _meet(
        other.touched.writes, one.touched.reads
    )


def _meet(writes: frozenset[Place], places: frozenset[Place]) -> bool:
    if not writes or not places:
        return False
    if writes & places or ("*", "") in writes or ("*", "") in places:
        return True
    whole = {name for name, member in writes if not member} & {name for name, _ in places}
    return bool(whole or {name for name, member in places if not member} & {name for name, _ in writes})


def first_dependent(step: Step, others: Sequence[Step]) -> int | None:
    """Return the index of the first step whose order with this one may matter."""
    return next((number for number, other in enumerate(others) if depend(step, other)), None)


def may_hold(step: Step) -> bool:
    """Whether the trigger may hold the actor inside its statement."""
    return step.server == POSTGRESQL and _CHANGES_TASK.search(step.what) is not None
