"""Mask the values of keys such as ``password`` when parameters and results are displayed.

Stored values are unchanged, because the task needs them. Whole words of a key count:
``api_token`` is masked, ``max_tokens`` is not. Names that are declared sensitive
(``registry.sensitive_names``) are masked too; they are compared as ``normal_name`` spells them.

``unmask`` restores the values in parameters that a person edited with masked secrets. A part that
is unchanged keeps its real value. A mask anywhere else is refused, because it would be stored in
place of the secret.
"""

import re
from collections.abc import Collection
from itertools import pairwise
from typing import Any, Final

from queue_app.exceptions import InvalidTaskData

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


def unmask(edited: Any, shown: Any, original: Any, path: str = "parameters") -> Any:
    """Return ``edited`` with the values of ``original`` where it equals ``shown``; its depth was checked.

    ``shown`` is ``original`` with masked values, so both have the same shape down to the masks.
    Items of a list are matched by their value, else by position if the length is unchanged.
    Raises ``InvalidTaskData`` with the path of a misplaced mask.
    """
    if same(edited, shown):
        return original
    if isinstance(edited, dict):
        known = shown if isinstance(shown, dict) and isinstance(original, dict) else {}
        return {
            key: unmask(item, known[key], original[key], f"{path}.{key}")
            if key in known
            else _unmasked(item, f"{path}.{key}")
            for key, item in edited.items()
        }
    if isinstance(edited, list):
        if not (isinstance(shown, list) and isinstance(original, list)):
            return [_unmasked(item, f"{path}[{position}]") for position, item in enumerate(edited)]
        return [_item(edited, position, shown, original, f"{path}[{position}]") for position in range(len(edited))]
    return _unmasked(edited, path)


def _item(edited: list[Any], position: int, shown: list[Any], original: list[Any], path: str) -> Any:
    item, same_length = edited[position], len(edited) == len(shown)
    if same_length and same(item, shown[position]):
        return original[position]
    alike = [place for place, other in enumerate(shown) if same(item, other)]
    if len(alike) == 1:
        return original[alike[0]]
    if same_length:
        return unmask(item, shown[position], original[position], path)
    return _unmasked(item, path)


def same(one: Any, other: Any) -> bool:
    """Whether two JSON values are identical; Python takes ``1``, ``1.0`` and ``true`` for equal."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(item, other[key]) for key, item in one.items())
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


def _unmasked(value: Any, path: str) -> Any:
    """Return a new value; refuse a mask in it."""
    if isinstance(value, dict):
        return {key: _unmasked(item, f"{path}.{key}") for key, item in value.items()}
    if isinstance(value, list):
        return [_unmasked(item, f"{path}[{position}]") for position, item in enumerate(value)]
    if isinstance(value, str) and MASK in value:
        raise InvalidTaskData(
            path,
            f"{path} holds the mask {MASK}, not a value. Leave a masked value where it was to keep it, "
            "or write the whole value again.",
            code="masked_value",
        )
    return value
