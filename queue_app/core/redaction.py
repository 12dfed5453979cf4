"""Mask secrets in free text: error messages, tracebacks and results often repeat parameters.

``core.masking`` masks by key. This module searches texts for the masked values, and for values
after a secret or sensitive name (``password=…``), after an authorization scheme, or in the
password part of a URL.
"""

import re
from collections.abc import Collection, Iterable, Iterator
from functools import lru_cache
from typing import Any, Final, Self

from queue_app.core.masking import MASK, is_secret, mask, normal_name

#: Minimum length of a value that is searched for; shorter ones occur in harmless text.
MIN_LENGTH: Final = 4

#: Anchored at the start of a word; tried at each letter, the search would take quadratic time.
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
    """Secret values of one task, and the ``names`` that are declared sensitive for it."""

    names: frozenset[str]

    def __new__(cls, values: Iterable[str] = (), names: Iterable[str] = ()) -> Self:
        """Create the set."""
        secrets = super().__new__(cls, values)
        secrets.names = frozenset(names)
        return secrets


def secrets_of(value: Any, names: Collection[str] = ()) -> Secrets:
    """Return the values that ``mask`` hides in a JSON value, as texts, and the given names."""
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
    """Return free text without the given secrets and without values after secret names (``password=…``)."""
    text = _NAMED.sub(rf"\g<name>\g<quote>{MASK}", _replace(text, _longest_first(secrets)))
    if names := _names_of(secrets):
        text = _behind(names).sub(
            lambda found: f"{found[1]}{MASK}" if normal_name(found["name"]) in names else found[0], text
        )
    return _ADDRESS.sub(rf"\1:{MASK}@", _SCHEME.sub(rf"\1 {MASK}", text))


def redact_value(value: Any, secrets: Iterable[str] = ()) -> Any:
    """Return ``mask(value)`` and also mask the given secrets and passwords of URLs in its texts."""
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
    """Return a pattern for values after these names in free text, in any spelling of the names."""
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
