"""Ask the servers for a sign of life, and give up on them in time."""

from __future__ import annotations

from dataclasses import dataclass

from django.db import connections

from queue_app.index import get_index
from queue_app.index.server import pulse
from queue_app.rows import audit
from queue_app.rows.database import alias
from queue_app.services.probe import Probe

#: The parts of the whole.
DATABASE, INDEX, SCHEDULER = PARTS = ("database", "index", "scheduler")


def _ask_database() -> int:
    """Return the generation of the index that the rows name."""
    try:
        return audit.generation()
    finally:
        connections[alias()].close()  # this thread's own; each time anew, for workers must be able to connect as well


database = Probe(_ask_database)
index = Probe(lambda: pulse(get_index()))


@dataclass(frozen=True, slots=True)
class Health:
    """What of the queue works: ``reasons`` are what does not, by the part that they concern."""

    reasons: dict[str, str]

    def word(self, part: str) -> str:
        """Return ok or not ok."""
        return "not ok" if part in self.reasons else "ok"


def look(within: float) -> Health:
    """Return what works, after at most ``within`` seconds."""
    asked, also = database.ask(), index.ask()
    number, beat = asked.result(within), also.result(within)
    reasons: dict[str, str] = {}
    if number is None:
        reasons[DATABASE] = "The database does not answer, or lacks the tables."
    if beat is None:
        reasons[INDEX] = "Redis does not answer: tasks are accepted, and none is started."
    else:
        if beat.state != "ready" or (number is not None and beat.generation != number):
            state = beat.state if beat.state != "ready" else "of another generation than the rows"
            reasons[INDEX] = f"The index is {state}: tasks are accepted, and none is started until it is rebuilt."
        if not beat.led:
            reasons[SCHEDULER] = "No scheduler leads: due tasks, dead workers and repairs wait."
    return Health(reasons)
