"""A clock of the index that stands still."""

from datetime import datetime

import pytest

from queue_app.index import Index
from queue_app.index.scripts import NAMES, source
from tests.support.index_state import client_of


def stop_clock(index: Index, at: datetime, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give all scripts of the index this instant as the current time."""
    seconds, microseconds = divmod(round(at.timestamp() * 1_000_000), 1_000_000)
    time = f"{{ '{seconds}', '{microseconds}' }}"
    scripts = {name: source(name).replace("redis.call('TIME')", time) for name in NAMES}
    assert any(time in text for text in scripts.values())
    registered = {name: client_of(index).register_script(text) for name, text in scripts.items()}
    monkeypatch.setattr(index, "_scripts", registered)
