"""The time of the notifiers, and what they write."""

import threading
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from queue_app.index import Index, notifier
from queue_app.index.notifier import Pipeline


class Clock:
    """Time that the test lets pass. ``sleep`` notes how long the thread of a notifier sleeps, until ``wake``."""

    def __init__(self) -> None:
        self.now = 10_000.0
        self.asked = 0
        self.pauses: list[float] = []
        self._awake = threading.Semaphore(0)

    def monotonic(self) -> float:
        self.asked += 1
        return self.now

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self._awake.acquire()

    def wake(self) -> None:
        self._awake.release()


@pytest.fixture
def gather(override):
    """Return a function that sets for how long (s) notifications are gathered."""
    return lambda seconds: override(notifier, GATHER_SECONDS=seconds)


@pytest.fixture
def clock(monkeypatch, gather) -> Clock:
    """Stop the time of the notifiers, which gather for 5 ms."""
    gather(0.005)
    clock = Clock()
    monkeypatch.setattr(notifier, "time", SimpleNamespace(monotonic=clock.monotonic, sleep=clock.sleep))
    return clock


@pytest.fixture
def own_index(settings) -> Index:
    """An index with a notifier of its own, which has not connected yet."""
    return Index("default", settings.TASKQUEUE["KEY_PREFIX"])


@pytest.fixture
def written(monkeypatch) -> list:
    """The calls of each write of a notifier; instead of writing it raises what ``written.fail()`` returns."""

    class Written(list):
        fail: Callable[[], Exception] | None = None

    written, plain = Written(), Pipeline.send

    def send(pipeline, calls):
        written.append(calls)
        if written.fail is not None:
            raise written.fail()
        plain(pipeline, calls)

    monkeypatch.setattr(Pipeline, "send", send)
    return written
