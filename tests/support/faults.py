"""Code that fails as the test says."""

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import Mock, patch

NEVER = AssertionError("nothing should call this")


@contextmanager
def failing(owner: object, name: str, error: object = NEVER) -> Iterator[Mock]:
    """Let each call of ``owner.name`` raise an error within the block; each of a list in turn, where None is none."""
    with patch.object(owner, name, side_effect=error) as calls:
        yield calls
