"""Hide values whose key says that they are secret, wherever parameters and results are shown.

What is stored stays as it was given: the task needs it. Only words count, so ``api_token``
is hidden and ``max_tokens`` is not. Other names are hidden where they are declared sensitive
(``registry.sensitive_names``); these are compared whole, as ``normal_name`` writes them.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from itertools import pairwise
from typing import Any, Final

MASK: Final = "********"
_WORDS: Final = frozenset(
    {"apikey", "authorization", "cookie", "credential", "credentials", "passphrase", "passwd", "password"}
    | {"passwords", "secret", "secrets", "token"}
)
_PAIRS: Final = frozenset({("access", "key"), ("api", "key"), ("private", "key"), ("signing", "key")})
_WORD: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")


def normal_name(key: str) -> str:
    """Return the one spelling of ``cardNumber``, ``Card-Number`` and ``card_number``: the last."""
    return "_".join(_words(key)) or key


def is_secret(key: str, names: Collection[str] = ()) -> bool:
    """Return whether a value under ``key`` must not be shown; ``names`` are declared sensitive as well."""
    words = _words(key)
    if names and ("_".join(words) or key) in names:
        return True
    return not _WORDS.isdisjoint(words) or not _PAIRS.isdisjoint(pairwise(words))


def mask(value: Any, names: Collection[str] = ()) -> Any:
    """Return a copy of a JSON value in which secrets are replaced; its depth was bounded when it was stored."""
    if isinstance(value, dict):
        return {
            key: MASK if item not in (None, "") and is_secret(key, names) else mask(item, names)
            for key, item in value.items()
        }
    if isinstance(value, list):
        return [mask(item, names) for item in value]
    return value


def _words(key: str) -> list[str]:
    return [word.lower() for word in _WORD.findall(key)]
