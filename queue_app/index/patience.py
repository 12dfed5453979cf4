"""Bound the time that a page waits for Redis. A frozen server keeps its connections, and the client waits for long."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

from queue_app.core.probe import Probe
from queue_app.exceptions import IndexUnavailable

#: Seconds for which a page waits for an answer.
SECONDS: Final = 1.5


class Patience:
    """Whether the index answers, asked once for a page."""

    def __init__(self) -> None:
        self._answers: bool | None = None  # None: not asked

    def check(self, probe: Probe[object]) -> None:
        """Raise ``IndexUnavailable`` unless the index has answered in time."""
        if self._answers is None:
            self._answers = probe.ask().result(SECONDS) is not None
        if not self._answers:
            raise IndexUnavailable(f"Redis has not answered within {SECONDS:g} s.")


_current: Final[ContextVar[Patience | None]] = ContextVar("taskqueue_patience", default=None)


@contextmanager
def patience() -> Iterator[None]:
    """In this block, ``get_index`` raises ``IndexUnavailable`` while the index does not answer."""
    before = _current.get()
    token = _current.set(before or Patience())
    try:
        yield
    finally:
        _current.reset(token)


def check(probe: Probe[object]) -> None:
    """Raise ``IndexUnavailable`` inside of ``patience`` if the index has not answered."""
    if (found := _current.get()) is not None:
        found.check(probe)
