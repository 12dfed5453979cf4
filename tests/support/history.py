"""Record each transition of a task in PostgreSQL, and refuse those that must not be.

Installed by tests only, so that the hot path pays nothing for it. The allowed transitions
are read from ``queue_app.core.states``, so that table and trigger cannot drift apart.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from django.db import connection

from queue_app.core.states import TRANSITIONS, Status


def _pairs() -> str:
    return ", ".join(f"'{before}>{after}'" for before, allowed in TRANSITIONS.items() for after in sorted(allowed))


# What is made once for a database stays: to make a table for each test takes longer than many a test.
_INSTALL = f"""
DO $once$ BEGIN IF to_regclass('task_event') IS NULL THEN
CREATE TABLE task_event (
    seq bigint GENERATED ALWAYS AS IDENTITY, task_id uuid NOT NULL, before text, after text NOT NULL,
    attempt int NOT NULL, worker_id uuid, at timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE FUNCTION record_task_event() RETURNS trigger LANGUAGE plpgsql AS $body$
BEGIN
    IF TG_OP = 'INSERT' THEN
        INSERT INTO task_event (task_id, after, attempt, worker_id)
        VALUES (NEW.id, NEW.status, NEW.attempt, NEW.worker_id);
        RETURN NULL;
    END IF;
    IF NEW.attempt <> OLD.attempt
        AND NOT (OLD.status = 'queued' AND NEW.status = 'executing' AND NEW.attempt = OLD.attempt + 1) THEN
        RAISE EXCEPTION 'task %: attempt % -> % from % to %', OLD.id, OLD.attempt, NEW.attempt, OLD.status, NEW.status;
    END IF;
    IF NEW.status <> OLD.status THEN
        IF OLD.status || '>' || NEW.status NOT IN ({_pairs()}) THEN
            RAISE EXCEPTION 'task %: no transition from % to %', OLD.id, OLD.status, NEW.status;
        END IF;
        IF NEW.status = 'executing' AND NEW.attempt = OLD.attempt THEN
            RAISE EXCEPTION 'task %: claimed without a new attempt', OLD.id;
        END IF;
        INSERT INTO task_event (task_id, before, after, attempt, worker_id)
        VALUES (NEW.id, OLD.status, NEW.status, NEW.attempt, NEW.worker_id);
    END IF;
    RETURN NULL;
END $body$;
END IF; END $once$;
DELETE FROM task_event;
CREATE OR REPLACE TRIGGER record_task_event AFTER INSERT OR UPDATE ON queue_app_task
    FOR EACH ROW EXECUTE FUNCTION record_task_event();
"""  # noqa: S608 - the names of states
_REMOVE = "DROP TRIGGER IF EXISTS record_task_event ON queue_app_task"


@dataclass(frozen=True, slots=True)
class Event:
    """One transition: ``before`` is ``None`` for the insert."""

    seq: int
    task_id: uuid.UUID
    before: str | None
    after: str
    attempt: int


class History:
    """The transitions since the installation, in the order in which they were written."""

    def events(self, task_id: uuid.UUID | None = None) -> list[Event]:
        """Return the transitions of one task, or of all."""
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT seq, task_id, before, after, attempt FROM task_event"
                " WHERE %s::uuid IS NULL OR task_id = %s ORDER BY seq",
                [task_id, task_id],
            )
            return [Event(*row) for row in cursor.fetchall()]

    def states(self, task_id: uuid.UUID) -> str:
        """Return the states that a task went through, as ``queued executing completed``."""
        return " ".join(event.after for event in self.events(task_id))

    def most_executing(self) -> int:
        """Return how many tasks were executing at once at the worst instant."""
        running = worst = 0
        for event in self.events():
            running += (event.after == Status.EXECUTING) - (event.before == Status.EXECUTING)
            worst = max(worst, running)
        return worst

    def starts(self) -> list[uuid.UUID]:
        """Return the ids in the order in which they were claimed."""
        return [event.task_id for event in self.events() if event.after == Status.EXECUTING]


@contextmanager
def installed() -> Iterator[History]:
    """Install the trigger for a block."""
    with connection.cursor() as cursor:
        cursor.execute(_INSTALL)
    try:
        yield History()
    finally:
        with connection.cursor() as cursor:
            cursor.execute(_REMOVE)
