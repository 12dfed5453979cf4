"""Hide values whose key says that they are secret, wherever parameters and results are shown.

What is stored stays as it was given: the task needs it. Only words count, so ``api_token``
is hidden and ``max_tokens`` is not.
"""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Any, Final

MASK: Final = "********"
_WORDS: Final = frozenset(
    {"apikey", "authorization", "cookie", "credential", "credentials", "passphrase", "passwd", "password"}
    | {"passwords", "secret", "secrets", "token"}
)
_PAIRS: Final = frozenset({("access", "key"), ("api", "key"), ("private", "key"), ("signing", "key")})
_WORD: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")


def is_secret(key: str) -> bool:
    """Return whether a value under ``key`` must not be shown."""
    words = [word.lower() for word in _WORD.findall(key)]
    return not _WORDS.isdisjoint(words) or not _PAIRS.isdisjoint(pairwise(words))


def mask(value: Any) -> Any:
    """Return a copy of a JSON value in which secrets are replaced; its depth was bounded when it was stored."""
    if isinstance(value, dict):
        return {key: MASK if item not in (None, "") and is_secret(key) else mask(item) for key, item in value.items()}
    if isinstance(value, list):
        return [mask(item) for item in value]
    return value
