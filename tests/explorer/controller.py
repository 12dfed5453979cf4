"""Run actors one at a time by a plan: who has the turn, where it passes on, what happens to which message."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import psycopg
from django.db import connection

from queue_app.index import redis_index
from tests.explorer.dependence import HELD, WAITS, Step, note_transactions
from tests.explorer.gates import BACK_SECONDS, CLOCK, CLOCK_KEY, GO, POSTGRESQL, Actor, gates
from tests.explorer.monitor import Monitor
from tests.support.engine import redis_client
from tests.support.waiting import let_pass

#: An actor that neither stops nor waits for a lock for this long hangs.
HANG_SECONDS = 60.0
#: All actors wait for each other for this long. PostgreSQL has found no deadlock, so it is not about its locks.
STUCK_SECONDS = 10.0
#: The advisory lock that the trigger of test databases waits for inside a statement.
HOLD_LOCK = 0x6578706C

# A statement that changes or makes a task of a held session stops at its first row: after it took its snapshot and the
# lock of the row, or made it, and before its commit.
INSTALL = f"""
CREATE TABLE IF NOT EXISTS explorer_hold (pid int PRIMARY KEY);
CREATE OR REPLACE FUNCTION explorer_hold() RETURNS trigger LANGUAGE plpgsql AS $body$
BEGIN
    IF EXISTS (SELECT FROM explorer_hold WHERE pid = pg_backend_pid()) THEN
        PERFORM pg_advisory_lock_shared({HOLD_LOCK});
        PERFORM pg_advisory_unlock_shared({HOLD_LOCK});
    END IF;
    RETURN NEW;
END $body$;
CREATE OR REPLACE TRIGGER explorer_hold BEFORE UPDATE ON queue_app_task FOR EACH ROW EXECUTE FUNCTION explorer_hold();
CREATE OR REPLACE TRIGGER explorer_hold_new AFTER INSERT ON queue_app_task
    FOR EACH ROW EXECUTE FUNCTION explorer_hold();
DELETE FROM explorer_hold;
"""  # noqa: S608 - the number of a lock
REMOVE = """
DROP TRIGGER IF EXISTS explorer_hold ON queue_app_task;
DROP TRIGGER IF EXISTS explorer_hold_new ON queue_app_task;
"""
_WAITS = """
SELECT a.pid, EXISTS (
    SELECT FROM pg_locks AS l WHERE l.pid = a.pid AND NOT l.granted AND l.locktype = 'advisory' AND l.objid = %s
) FROM pg_stat_activity AS a WHERE a.pid = ANY(%s) AND a.wait_event_type = 'Lock'
"""


class Switch(NamedTuple):
    """Before step ``step`` (or inside it, once its statement holds a row) the turn passes to the next actor."""

    step: int
    inside: bool = False


class Fault(NamedTuple):
    """What happens to the message of step ``step``."""

    step: int
    kind: str


@dataclass(frozen=True, slots=True)
class Plan:
    """A schedule: which actor begins, where turns pass on, and at most one fault."""

    first: int = 0
    switches: tuple[Switch, ...] = ()
    fault: Fault | None = None

    def __str__(self) -> str:
        parts = [f"{self.first}"]
        parts += [f"{'i' if switch.inside else 's'}{switch.step}" for switch in self.switches]
        parts += [f"{self.fault.kind}{self.fault.step}"] if self.fault else []
        return ",".join(parts)


@dataclass(slots=True)
class Run:
    """What a plan did."""

    plan: Plan
    trace: list[Step] = field(default_factory=list)
    values: dict[str, Any] = field(default_factory=dict)
    errors: dict[str, BaseException] = field(default_factory=dict)
    faulted: str = ""  # the actor that met the fault
    stuck: bool = False

    def shape(self) -> tuple[object, ...]:
        """Return what tells this run from others: two plans with one shape did the same."""
        return tuple((step.actor, step.server, step.what, step.note) for step in self.trace)


@dataclass(slots=True)
class _Turns:
    """Who may go on while a plan runs."""

    actors: list[Actor]
    turn: int
    step: int = 0
    blocked: set[Actor] = field(default_factory=set)  # wait for a lock, or are held inside a statement
    stuck_since: float | None = None

    @property
    def ready(self) -> list[Actor]:
        return [actor for actor in self.actors if not actor.is_over and actor not in self.blocked]

    @property
    def is_over(self) -> bool:
        return all(actor.is_over for actor in self.actors)

    def pass_on(self) -> None:
        """Give the turn to the next actor that can go on."""
        ready = self.ready
        order = itertools.chain(range(self.turn + 1, len(self.actors)), range(self.turn + 1))
        self.turn = next((number for number in order if self.actors[number] in ready), self.turn)


class Controller:
    """Holds the threads of the actors, and looks at PostgreSQL for who waits."""

    def __init__(self, count: int = 3) -> None:
        self.actors = [Actor(str(number)) for number in range(count)]
        self._hold = psycopg.connect(**connection.get_connection_params(), autocommit=True)
        self._look = psycopg.connect(**connection.get_connection_params(), autocommit=True)
        self._held: Actor | None = None
        self._index_client = redis_client()
        self._monitor = Monitor(self._index_client, redis_index().keys.prefix)

    def close(self) -> None:
        """End the threads and close the connections."""
        for actor in self.actors:
            actor.close()
        self._hold.close()
        self._look.close()
        self._monitor.close()
        self._index_client.delete(CLOCK_KEY)

    def run(self, actions: Mapping[str, Callable[[], Any]], plan: Plan) -> Run:
        """Run the actions by the plan, each to its end."""
        run = Run(plan)
        self._index_client.delete(CLOCK_KEY)
        self._monitor.mark()
        turns = _Turns(self.actors[: len(actions)], plan.first)
        for actor, (name, action) in zip(turns.actors, actions.items(), strict=True):
            actor.begin(name, action)
        while not turns.is_over:
            self._settle(turns.blocked)
            if turns.ready:
                self._step(run, turns)
            elif not self._wait(turns):
                run.stuck = True
                return run
        if self._held is not None:
            self._release()
        note_transactions(run.trace)
        self._monitor.note(run.trace)
        for actor in turns.actors:
            if actor.error is None:
                run.values[actor.label] = actor.value
            else:
                run.errors[actor.label] = actor.error
        return run

    def _wait(self, turns: _Turns) -> bool:
        """Let one of the actors go on that all wait; return false when none ever does."""
        if self._held is not None:  # the others wait for the row that it holds
            self._release()
            return True
        now = time.perf_counter()
        turns.stuck_since = turns.stuck_since or now
        let_pass(0.005)
        return now - turns.stuck_since < STUCK_SECONDS

    def _step(self, run: Run, turns: _Turns) -> None:
        """Let the actor whose turn it is send its next message."""
        plan, turns.stuck_since = run.plan, None
        switch = next((each for each in plan.switches if each.step == turns.step), None)
        if switch and not switch.inside and self._held is not None and self._held is not turns.actors[turns.turn]:
            self._let_go(turns)
        if (switch and not switch.inside) or turns.actors[turns.turn] not in turns.ready:
            turns.pass_on()
        actor = turns.actors[turns.turn]
        server, what = actor.at
        fate = plan.fault.kind if plan.fault and plan.fault.step == turns.step and server else GO
        entry = Step(actor.label, server, what, "" if fate == GO else fate)
        run.trace.append(entry)
        actor.step = entry
        if fate == CLOCK:
            redis_index().generation()  # as the leading scheduler does twice a second
            self._index_client.set(CLOCK_KEY, BACK_SECONDS)
        elif fate != GO:
            run.faulted = actor.label
        hold = bool(switch and switch.inside and server == POSTGRESQL and fate == GO and self._held is None)
        if hold:
            self._begin_hold(actor)
        actor.go_on(fate)
        outcome = self._follow(actor)
        if outcome:
            entry.note = outcome
            turns.blocked.add(actor)
        if outcome == HELD:
            turns.pass_on()
        elif hold:
            self._release()
        turns.step += 1

    def _let_go(self, turns: _Turns) -> None:
        """Let the statement end inside which an actor is held."""
        held = self._held
        self._release()
        if held is not None and not self._follow(held):
            turns.blocked.discard(held)

    def _begin_hold(self, actor: Actor) -> None:
        self._hold.execute("SELECT pg_advisory_lock(%s)", [HOLD_LOCK])
        self._hold.execute("INSERT INTO explorer_hold VALUES (%s) ON CONFLICT DO NOTHING", [actor.backend_pid])
        self._held = actor

    def _release(self) -> None:
        self._held = None
        self._hold.execute("DELETE FROM explorer_hold")
        self._hold.execute("SELECT pg_advisory_unlock(%s)", [HOLD_LOCK])

    def _follow(self, actor: Actor) -> str:
        """Wait until the actor stops (return ""), waits for a lock, or is held inside its statement."""
        until = time.perf_counter() + HANG_SECONDS
        pause = 0.001
        while not actor.stopped.wait(pause):
            waits = self._waiting([actor])
            if actor in waits and not actor.stopped.is_set():
                return HELD if waits[actor] else WAITS
            if time.perf_counter() > until:
                raise AssertionError(f"{actor.label} hangs after {actor.at}")
            pause = min(0.01, pause * 1.5)
        return ""

    def _settle(self, blocked: set[Actor]) -> None:
        """Find out which of the actors that waited go on now, and let these come to their next gate."""
        for actor in list(blocked):
            if actor.stopped.is_set() or (not self._waiting([actor]) and not self._follow(actor)):
                blocked.discard(actor)

    def _waiting(self, actors: list[Actor]) -> dict[Actor, bool]:
        found = dict(self._look.execute(_WAITS, [HOLD_LOCK, [actor.backend_pid for actor in actors]]).fetchall())
        return {actor: found[actor.backend_pid] for actor in actors if actor.backend_pid in found}


@contextmanager
def controller(count: int = 3) -> Iterator[Controller]:
    """Install the trigger and the gates for a block."""
    with connection.cursor() as cursor:
        cursor.execute(INSTALL)
    with gates():
        control = Controller(count)
        try:
            yield control
        finally:
            control.close()
            with connection.cursor() as cursor:
                cursor.execute(REMOVE)
