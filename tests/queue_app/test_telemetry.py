"""Log lines about lost notifications of the index."""

import ast
from pathlib import Path

import pytest

from queue_app import signals, telemetry

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
    monkeypatch.setattr(telemetry, "_logged", {})
    for _ in range(3):
        signals.index_unreachable.send(None, operation=operation, error=OSError("gone"))
    assert caplog.messages == [line]
