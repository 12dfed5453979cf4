"""Hide secrets in free text: error messages, tracebacks and results often repeat what a task was called with.

``core.masking`` decides by keys. Here the values that it hides are looked for in texts, and
so is what stands behind a telling name (``password=…``), an authorization scheme, or in the
user part of an address. Names that are declared sensitive count like telling ones.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from functools import lru_cache
from typing import Any, Final, Self

from queue_app.core.masking import MASK, is_secret, mask, normal_name

#: Shorter values are not looked for: they would blot out innocent text.
MIN_LENGTH: Final = 4

#: From the beginning of a word on: tried at each of its letters, it would take time by the square of the length.
_NAMED: Final = re.compile(
    r"""(?<![\w-])(?P<name>[\w-]*(?:password|passwd|passphrase|secret|token|api[_-]?key|access[_-]?key|private[_-]?key
        |authorization|credential|cookie)[\w-]{0,100}["']?\s*[:=]\s*)(?P<quote>["']?)
        (?:(?:bearer|basic|token)\s+)?[^\s"',;&)}\]]+""",
    re.IGNORECASE | re.VERBOSE,
)
_SCHEME_OF: Final = re.compile(r"(bearer|basic|token)\s+", re.IGNORECASE)
_SCHEME: Final = re.compile(r"\b(bearer|basic)\s+[\w.~+/=-]{8,}", re.IGNORECASE)
_ADDRESS: Final = re.compile(r"(://[^:@/\s]{0,200}):[^@/\s]+@")


class Secrets(frozenset[str]):
    """What must not be shown of one task: values, and the ``names`` that are declared sensitive for it."""

    names: frozenset[str]

    def __new__(cls, values: Iterable[str] = (), names: Iterable[str] = ()) -> Self:
        """Return a set of values that also knows the names."""
        secrets = super().__new__(cls, values)
        secrets.names = frozenset(names)
        return secrets


def secrets_of(value: Any, names: Collection[str] = ()) -> Secrets:
    """Return the texts and numbers that ``mask`` hides in a JSON value, as texts, and the names given."""
    return Secrets((text for text in _secrets(value, names, secret=False) if len(text) >= MIN_LENGTH), names)


def _secrets(value: Any, names: Collection[str], *, secret: bool) -> Iterator[str]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _secrets(item, names, secret=secret or is_secret(key, names))
    elif isinstance(value, list):
        for item in value:
            yield from _secrets(item, names, secret=secret)
    elif secret and isinstance(value, str | int | float) and not isinstance(value, bool):
        text = str(value)
        yield text
        if (scheme := _SCHEME_OF.match(text)) is not None:
            yield text[scheme.end() :]


def redact(text: str, secrets: Iterable[str] = ()) -> str:
    """Return free text without the given secrets, and without whatever is named as one."""
    text = _NAMED.sub(rf"\g<name>\g<quote>{MASK}", _replace(text, _longest_first(secrets)))
    if names := _names_of(secrets):
        text = _behind(names).sub(
            lambda found: f"{found[1]}{MASK}" if normal_name(found["name"]) in names else found[0], text
        )
    return _ADDRESS.sub(rf"\1:{MASK}@", _SCHEME.sub(rf"\1 {MASK}", text))


def redact_value(value: Any, secrets: Iterable[str] = ()) -> Any:
    """Return ``mask(value)`` with the given secrets, and passwords in addresses, hidden in its texts as well."""
    return _redact_value(mask(value, _names_of(secrets)), _longest_first(secrets))


def _redact_value(value: Any, secrets: list[str]) -> Any:
    if isinstance(value, dict):
        return {key: _redact_value(item, secrets) for key, item in value.items()}
    if isinstance(value, list):
        return [_redact_value(item, secrets) for item in value]
    return _ADDRESS.sub(rf"\1:{MASK}@", _replace(value, secrets)) if isinstance(value, str) else value


def _names_of(secrets: Iterable[str]) -> frozenset[str]:
    return secrets.names if isinstance(secrets, Secrets) else frozenset()


@lru_cache(maxsize=256)
def _behind(names: frozenset[str]) -> re.Pattern[str]:
    """Return a pattern of the values that stand behind these names in free text, in any spelling."""
    spelt = "|".join(re.escape(name).replace("_", "[_-]?") for name in sorted(names, key=len, reverse=True))
    return re.compile(
        rf"""((?<![\w-])(?P<name>{spelt})["']?\s*[:=]\s*)(?:"[^"]*"|'[^']*'|[^\s"',;&)}}\]]+)""", re.IGNORECASE
    )


def _longest_first(secrets: Iterable[str]) -> list[str]:
    return sorted(secrets, key=len, reverse=True)


def _replace(text: str, secrets: list[str]) -> str:
    for secret in secrets:
        text = text.replace(secret, MASK)
    return text
