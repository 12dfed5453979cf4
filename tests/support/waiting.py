"""Wait for what others bring about, and for time that has to pass."""

import time
from collections.abc import Callable, Iterator

#: Maximum seconds that a condition may take on a slow machine; only a hang takes as long.
PATIENCE = 60.0


def until[T](condition: Callable[[], T], what: str, seconds: float = PATIENCE) -> T:
    """Wait until the condition holds, and return what it returned; ask less often the longer it takes."""
    began = time.monotonic()
    while not (found := condition()):
        waited = time.monotonic() - began
        if waited > seconds:
            raise AssertionError(f"in vain, for {seconds:.0f} s: {what}")
        let_pass(min(0.005 + waited / 20, 0.1))
    return found


def let_pass(seconds: float) -> None:
    """Let time pass that itself is the point: a fault lasts, a figure is measured."""
    time.sleep(seconds)


def turns(seconds: float, pause: float) -> Iterator[float]:
    """Yield the seconds that have passed, until they are ``seconds``; pause after each turn."""
    began = time.monotonic()
    while (passed := time.monotonic() - began) < seconds:
        yield passed
        let_pass(pause)
