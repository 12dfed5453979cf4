"""Names of modules and classes that stand for something else during a block."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

#: The owner of a name, the name, and what it stands for.
type Swap = tuple[Any, str, Any]


@contextmanager
def swapped(*swaps: Swap) -> Iterator[None]:
    """Let these names stand for something else."""
    with ExitStack() as stack:
        for swap in swaps:
            stack.enter_context(mock.patch.object(*swap))
        yield


def always(value: Any) -> Callable[..., Any]:
    """Return a function that answers every call with the value."""
    return lambda *_args, **_options: value
