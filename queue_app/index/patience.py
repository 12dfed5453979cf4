"""Bound the time that a page waits for Redis. A frozen server keeps its connections, and the client waits for long."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

from queue_app.exceptions import IndexUnavailable

#: Seconds for which a page waits for an answer.
SECONDS: Final = 1.5

#: One thread asks for all pages of the process; the last question may still wait.
_asker: Final = ThreadPoolExecutor(1, "taskqueue-patience")
_asked: Future[object] = Future()
_asked.cancel()


class Patience:
    """Whether the index answers, asked once for a page."""

    def __init__(self) -> None:
        self._error: str | None = None  # empty: it answers; None: not asked

    def check(self, question: Callable[[], object]) -> None:
        """Raise ``IndexUnavailable`` unless the index has answered in time."""
        if self._error is None:
            try:
                _ask(question)
            except IndexUnavailable as error:
                self._error = str(error)
            else:
                self._error = ""
        if self._error:
            raise IndexUnavailable(self._error)


def _ask(question: Callable[[], object]) -> None:
    global _asked  # noqa: PLW0603 - one question at a time
    if _asked.done():
        _asked = _asker.submit(question)
    try:
        _asked.result(SECONDS)
    except TimeoutError:
        raise IndexUnavailable(f"Redis has not answered within {SECONDS:g} s.") from None


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


def check(question: Callable[[], object]) -> None:
    """Raise ``IndexUnavailable`` inside of ``patience`` if the index has not answered."""
    if (found := _current.get()) is not None:
        found.check(question)
