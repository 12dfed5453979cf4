"""Log lines about lost notifications of the index."""

import ast
import uuid
from pathlib import Path
from types import SimpleNamespace

import pytest
from django.db import OperationalError, ProgrammingError

from queue_app import signals, telemetry
from queue_app.exceptions import IndexDamaged, IndexUnavailable

SERVICES = Path(telemetry.__file__).parent / "services"
HINTS = {"notify_index", "on_commit"}


def hints():
    """Yield the name of every index notification."""
    for path in SERVICES.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") in HINTS:
                yield from (part.value for part in node.args[1:] if isinstance(part, ast.Constant))


def test_every_notification_has_a_line_for_its_loss():
    found = set(hints())
    assert {"push", "release", "retire"} <= found
    assert found <= telemetry._LOST.keys()


@pytest.mark.parametrize(
    ("operation", "line"),
    [
        ("release", "the index was not notified that slots are free; the reconciler will end their leases: gone"),
        ("mine", "the index was not notified of mine; the reconciler will repair it from the rows: gone"),
    ],
)
def test_the_line_of_a_lost_notification_is_not_repeated_at_once(caplog, monkeypatch, operation, line):
    for _ in range(3):
        signals.index_unreachable.send(None, operation=operation, error=IndexUnavailable("gone"))
    assert caplog.messages == [line]


def test_an_outage_has_one_line_however_many_calls_of_a_process_fail(caplog):
    def lose_a_connection():
        telemetry.log_error(OperationalError("gone"), "due failed: %s", "gone")

    for operation in ("release", "push", "retire"):
        signals.index_unreachable.send(None, operation=operation, error=IndexUnavailable("gone"))
        lose_a_connection()
    assert [message[:11] for message in caplog.messages] == ["the index w", "due failed:"], "one for each server"
    telemetry.outage_over()
    lose_a_connection()
    assert len(caplog.messages) == 3
    for _ in range(2):  # the servers answer
        telemetry.log_error(IndexDamaged("damaged"), "rebuild failed")
        telemetry.log_error(ProgrammingError("no such column"), "due failed")
    assert len(caplog.messages) == 7


def test_the_tasks_of_a_dead_worker_are_named(caplog):
    tasks = [SimpleNamespace(task_type="shop.tasks.die", id=number) for number in range(5)]
    signals.worker_reaped.send(None, worker_id=uuid.uuid4(), name="web-1:77")
    signals.tasks_orphaned.send(None, tasks=tasks)
    died, again = caplog.messages
    assert died == "worker web-1:77 is gone and was declared dead; its tasks are queued again"
    named = "shop.tasks.die (task 0), shop.tasks.die (task 1), shop.tasks.die (task 2), 2 others"
    assert again == f"their worker died, so these tasks run again: {named}"
