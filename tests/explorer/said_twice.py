"""Commands that are said twice: by a client whose answer was lost, or by a double click.

The actor says its command until it is answered, and then once more. The turn may pass on before each message, so the
second delivery comes at any later point of what the others do. It changes nothing: a trigger records each row that it
changes. Left out is what needs a key to be the same command again: an enqueue without an idempotency key, "run now" of
a schedule, a signal, and a repetition of a task that has failed once more (``docs/explanation/guarantees.md``).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final, NamedTuple

import psycopg
from django.db import connection, connections

from queue_app.core.priorities import Band
from queue_app.exceptions import TaskQueueError
from queue_app.models import Schedule, Workflow
from queue_app.models.operation import OperationKind
from queue_app.schedules.backfill import start_backfill
from queue_app.schedules.edit import update_schedule
from queue_app.schedules.pause import pause_schedule
from queue_app.services.control.pause import pause
from queue_app.services.enqueue.store import enqueue
from queue_app.services.lifecycle import dependencies
from queue_app.services.lifecycle.actions import cancel, cancel_many, discard, replay, reprioritise, retry, run_now
from queue_app.services.lifecycle.claim import claim
from queue_app.services.lifecycle.finish import finish
from queue_app.services.operations.request import Action, start_operation
from queue_app.services.operations.run import run_operations
from queue_app.services.read.task_filter import TaskFilter
from queue_app.workflows.steer import cancel_workflow, pause_workflow, stop_undoing
from tests.support.engine import failed, new
from tests.support.swaps import swapped

_TABLES: Final = (
    "task", "deadletter", "queue", "limit", "schedule", "scheduletick", "signal", "stepresult", "workflow",
    "workflownode", "taskdependency", "operation",
)  # fmt: skip
_FUNCTION: Final = """
CREATE TABLE IF NOT EXISTS explorer_again (pid int PRIMARY KEY);
CREATE TABLE IF NOT EXISTS explorer_change (what text);
CREATE OR REPLACE FUNCTION explorer_change() RETURNS trigger LANGUAGE plpgsql AS $body$
DECLARE columns text;
BEGIN
    IF NOT EXISTS (SELECT FROM explorer_again WHERE pid = pg_backend_pid()) THEN
        RETURN NULL;
    END IF;
    IF TG_OP = 'UPDATE' THEN
        SELECT string_agg(after.key, ', ') INTO columns
        FROM jsonb_each(to_jsonb(NEW)) AS after JOIN jsonb_each(to_jsonb(OLD)) AS before USING (key)
        WHERE after.value <> before.value AND key <> 'updated_at';
        IF columns IS NULL THEN
            RETURN NULL;
        END IF;
    END IF;
    INSERT INTO explorer_change VALUES (concat_ws(' ', TG_TABLE_NAME, lower(TG_OP), columns));
    RETURN NULL;
END $body$;
"""
INSTALL: Final = _FUNCTION + "".join(
    f"CREATE OR REPLACE TRIGGER explorer_change AFTER INSERT OR UPDATE OR DELETE ON queue_app_{table}"
    " FOR EACH ROW EXECUTE FUNCTION explorer_change();"
    for table in _TABLES
)
REMOVE: Final = "".join(f"DROP TRIGGER IF EXISTS explorer_change ON queue_app_{table};" for table in _TABLES)


class Again:
    """Knows which rows the second delivery of a command has changed."""

    def __init__(self) -> None:
        self._recorder = psycopg.connect(**connection.get_connection_params(), autocommit=True)
        self._recorded: threading.Thread | None = None

    def close(self) -> None:
        """Close the connection."""
        self._recorder.close()

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Record what this actor changes in a block."""
        with _unseen():
            connection.ensure_connection()
            self._recorder.execute("DELETE FROM explorer_change")
            self._recorder.execute("INSERT INTO explorer_again VALUES (%s)", [connection.connection.info.backend_pid])
        self._recorded = threading.current_thread()
        try:
            yield
        finally:
            self._recorded = None
            with _unseen():
                self._recorder.execute("DELETE FROM explorer_again")

    def without(self, upkeep: Callable[..., None]) -> Callable[..., None]:
        """Return a function that records nothing: it does what is due, and the scheduler would do it, too."""

        def run(*args: Any) -> None:
            if threading.current_thread() is not self._recorded:
                upkeep(*args)
                return
            with _unseen():
                pids = self._recorder.execute("DELETE FROM explorer_again RETURNING pid").fetchall()
            try:
                upkeep(*args)
            finally:
                with _unseen():
                    self._recorder.cursor().executemany("INSERT INTO explorer_again VALUES (%s)", pids)

        return run

    def changes(self) -> list[str]:
        """Return what was changed."""
        return [what for (what,) in self._recorder.execute("SELECT what FROM explorer_change").fetchall()]


@contextmanager
def _unseen() -> Iterator[None]:
    """Send what is no message of an actor."""
    actor: Any = threading.current_thread()
    was, actor.is_over = actor.is_over, True
    try:
        yield
    finally:
        actor.is_over = was


@contextmanager
def installed() -> Iterator[Again]:
    """Install the triggers for a block."""
    with connection.cursor() as cursor:
        cursor.execute(INSTALL)
    again = Again()
    try:
        with swapped((dependencies, "settle_one", again.without(dependencies.settle_one))):
            yield again
    finally:
        again.close()
        with connection.cursor() as cursor:
            cursor.execute(REMOVE)


class Command(NamedTuple):
    """What is said twice, and in which states."""

    say: Callable[[Any], Any]
    states: tuple[str, ...]
    #: Tables in which the second delivery leaves a record of itself.
    records: tuple[str, ...] = ()
    #: Transitions after which the same words mean something else: they undo the first, or bring new tasks.
    unless: tuple[str, ...] = ()


def twice(command: Command) -> Callable[[Any, int], None]:
    """Return an action that says the command until it is answered, and then again."""

    def act(world: Any, _number: int) -> None:
        for _ in range(2):
            try:
                command.say(world)
                break
            except TaskQueueError:  # a refusal is an answer
                break
            except Exception:  # noqa: BLE001 - the answer was lost
                connections.close_all()
                threading.current_thread().piped = []  # type: ignore[attr-defined]
        with world.again.recording(), suppress(TaskQueueError):
            command.say(world)

    return act


def changes_nothing(command: Command) -> Callable[[Any, Any, BaseException | None], Iterator[str]]:
    """Return what yields the changes of the second delivery."""

    def broken(world: Any, _value: Any, _error: BaseException | None) -> Iterator[str]:
        for what in world.again.changes():
            if what.split()[0] not in {f"queue_app_{table}" for table in command.records}:
                yield f"said twice, it changed more: {what}"

    return broken


def operation(kind: OperationKind) -> Callable[..., None]:
    """Return what lets an operation change all tasks of the queue."""

    def say(_world: Any, _number: int = 0) -> None:
        start_operation(Action(kind=kind), TaskFilter(queues=("default",)), by="ina")
        run_operations()

    return say


def _backfill(_world: Any) -> None:
    schedule = Schedule.objects.get()
    first = schedule.created_at.replace(year=2025, month=1, day=1, hour=0, minute=0, second=0, microsecond=0)
    start_backfill(schedule.name, first, first.replace(minute=2), by="ina")
    run_operations()


def _flow() -> Any:
    return Workflow.objects.values_list("id", flat=True).get()


def fail_next(world: Any, number: int) -> None:
    """Claim what waits, one after the other, and let it fail."""
    hand = world.hands[1 + number]
    for _ in range(2):
        finish([failed(task) for task in claim(hand.profile, hand.id, 1)])


_NEW_TASKS: Final = ("enqueue", "enqueue_many", "admit", "requests", "leave", "return")
COMMANDS: Final[dict[str, Command]] = {
    "cancel_twice": Command(lambda world: cancel(world.x), ("queued", "executing", "scheduled", "blocked", "ticked")),
    "cancel_many_twice": Command(lambda world: cancel_many([world.y, world.x]), ("queued", "both")),
    "reprioritise_twice": Command(lambda world: reprioritise(world.x, Band.HIGH), ("queued", "scheduled")),
    "run_now_twice": Command(lambda world: run_now(world.x), ("scheduled",), unless=("fail_next",)),
    "replay_twice": Command(lambda world: replay(world.first_letter, by="ina"), ("dead", "held")),
    "discard_twice": Command(lambda world: discard(world.first_letter, by="ina"), ("dead", "held")),
    "retry_twice": Command(lambda world: retry(world.x, by="ina"), ("dead", "cancelled"), unless=("fail_next",)),
    "pause_twice": Command(lambda _: pause("default", by="ina"), ("queued", "executing"), unless=("pause",)),
    "cancel_all_twice": Command(operation(OperationKind.CANCEL), ("queued", "scheduled"), ("operation",), _NEW_TASKS),
    "replay_all_twice": Command(operation(OperationKind.REPLAY), ("dead",), ("operation",), ("fail_next",)),
    "backfill_twice": Command(_backfill, ("ticked",), ("operation",)),
    "edit_schedule_twice": Command(lambda _: update_schedule("minutely", {"max_retries": 7}), ("ticked",)),
    "pause_schedule_twice": Command(lambda _: pause_schedule("minutely", by="ina"), ("ticked",)),
    "cancel_flow_twice": Command(
        lambda _: cancel_workflow(_flow(), by="ina"),
        ("parents", "held", "undoing", "undo_held"),
        unless=("retry_flow", "retry_undo"),
    ),
    "stop_undoing_twice": Command(
        lambda _: stop_undoing(_flow(), by="ina", reason="because"), ("undoing", "undo_held"), unless=("retry_undo",)
    ),
    "pause_flow_twice": Command(
        lambda _: pause_workflow(_flow(), by="ina"), ("parents", "held", "undoing"), unless=("pause_flow",)
    ),
    "enqueue_twice": Command(lambda _: enqueue(new(user="ina", idempotency_key="k")), ("queued",)),
}
#: Meets only commands that are said twice.
LIVES_ON: Final = "fail_next"


def meets(one: str, other: str) -> bool:
    """Return whether the two are a meeting that means something."""
    twices = [name for name in (one, other) if name in COMMANDS]
    if LIVES_ON in (one, other):
        return len(twices) == 1 and LIVES_ON not in COMMANDS[twices[0]].unless
    return not twices or (len(twices) == 1 and not {one, other} & set(COMMANDS[twices[0]].unless))
