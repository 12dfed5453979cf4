"""Restore masked values in parameters that a person edited.

The editor starts from parameters with masked secrets. A part that is unchanged keeps its real
value. A mask anywhere else is refused, because it would be stored in place of the secret.
"""

from __future__ import annotations

from typing import Any

from queue_app.core.masking import MASK
from queue_app.exceptions import InvalidTaskData


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
            "or write the whole value anew.",
            code="masked_value",
        )
    return value
