"""Tasks for the tests of ``queue_app.testing``."""

from queue_app import task
from queue_app.exceptions import Discard, Retry, Snooze
from queue_app.testing.clock import current

calls: list[object] = []


@task(max_retries=2, retry_delay=10)
def note(word: str, *, raises: str = "") -> str:
    """Record the word, and end as the parameters say."""
    calls.append(word)
    match raises:
        case "Retry":
            raise Retry(after=3)
        case "Discard":
            raise Discard("no use")
        case "Snooze":
            if calls.count(word) < 3:
                raise Snooze(60)
        case "":
            pass
        case _:
            raise ValueError(raises)
    return word


@task(timeout=30, max_retries=1, retry_delay=5)
def slow(seconds: float) -> None:
    """Move the clock."""
    calls.append(seconds)
    current().advance(seconds)


@task(backoff=lambda exception, task_result: None if task_result.attempts > 1 else 7, max_attempts=9)
def patient() -> None:
    """Fail; the backoff allows one more try."""
    calls.append("patient")
    raise KeyError


@task(max_retries=0)
def count() -> object:
    """Return what JSON cannot hold."""
    return set(calls)


@task
def again() -> None:
    """Enqueue itself endlessly."""
    again.enqueue()


@task(capabilities=["gpu"])
def render() -> str:
    """Require a capability."""
    return "frame"
