"""Scripts of the index that a test changes: their clock stands still, or they forget a check."""

from datetime import datetime

import pytest

from queue_app.index import Index
from queue_app.index.scripts import NAMES, source
from tests.support.index_state import client_of


def stop_clock(index: Index, at: datetime, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give all scripts of the index this instant as the current time."""
    seconds, microseconds = divmod(round(at.timestamp() * 1_000_000), 1_000_000)
    time = f"{{ '{seconds}', '{microseconds}' }}"
    change_scripts(index, "redis.call('TIME')", time, monkeypatch)


def change_scripts(index: Index, old: str, new: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let all scripts that hold a text run with another in its place."""
    assert any(old in source(name) for name in NAMES)
    changed = {name: client_of(index).register_script(source(name).replace(old, new)) for name in NAMES}
    monkeypatch.setattr(index, "_scripts", changed)
