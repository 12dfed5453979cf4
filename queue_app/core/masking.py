"""Mask values with telling keys when parameters and results are shown.

Stored values are unchanged, because the task needs them. Whole words of a key count:
``api_token`` is masked, ``max_tokens`` is not. Names that are declared sensitive
(``registry.sensitive_names``) are masked too; they are compared as ``normal_name`` spells them.
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
    """Return a name in snake case: ``card_number`` for ``cardNumber`` and ``Card-Number``."""
    return "_".join(_words(key)) or key


def is_secret(key: str, names: Collection[str] = ()) -> bool:
    """Return whether a value under ``key`` must be masked; ``names`` are declared sensitive."""
    words = _words(key)
    if names and ("_".join(words) or key) in names:
        return True
    return not _WORDS.isdisjoint(words) or not _PAIRS.isdisjoint(pairwise(words))


def mask(value: Any, names: Collection[str] = ()) -> Any:
    """Return a copy of a stored JSON value with its secrets masked; its depth was checked before it was stored."""
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
