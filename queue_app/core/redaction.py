"""Mask secrets: values under secret names, and texts that repeat them, such as errors and results.

Values under a secret name are masked by their key. Texts are searched for the masked values, and for values
after a secret or sensitive name (``password=…``), after an authorization scheme, or in the
password part of a URL.
"""

import re
from bisect import bisect
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import Any, Final, Self

from queue_app.exceptions import InvalidTaskData

# Mask the values of keys such as ``password`` when parameters and results are displayed.
#
# Stored values are unchanged, because the task needs them. Whole words of a key count:
# ``api_token`` is masked, ``max_tokens`` is not. Names that are declared sensitive
# (``registry.sensitive_names``) are masked too; they are compared as ``normal_name`` spells them.
#
# ``unmask`` restores the values in parameters that a person edited with masked secrets. A part that
# is unchanged keeps its real value. A mask anywhere else is refused, because it would be stored in
# place of the secret.

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


#: Minimum length of a value that is searched for; shorter ones occur in harmless text.
MIN_LENGTH: Final = 4
#: Most secrets that are searched for one after another.
FEW: Final = 16
#: Of many secrets, those that are longer are found by this number of first characters.
HEAD: Final = 16
#: The only key of an encrypted value, and what is displayed in place of one (``queue_app.encryption``).
SEALED: Final = "$encrypted"
HIDDEN: Final = "(encrypted)"

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


class Search:
    """A search for secret values in texts; its time grows with the texts, not with the number of secrets."""

    def __init__(self, secrets: Iterable[str]) -> None:
        self._ordered = sorted({secret for secret in secrets if secret}, key=len, reverse=True)
        self._width = min(MIN_LENGTH, len(self._ordered[-1])) if self._ordered else MIN_LENGTH
        self._heads = {secret[: self._width] for secret in self._ordered}
        self._short: dict[int, set[str]] = defaultdict(set)
        self._long: dict[str, list[str]] = defaultdict(list)
        if len(self._ordered) > FEW:
            for secret in sorted(self._ordered):
                if len(secret) <= HEAD:
                    self._short[len(secret)].add(secret)
                else:
                    self._long[secret[:HEAD]].append(secret)

    def hide(self, text: str) -> str:
        """Return the text with a mask in place of each secret."""
        if len(self._ordered) <= FEW:
            for secret in self._ordered:
                text = text.replace(secret, MASK)
            return text
        parts: list[str] = []
        begun = at = 0
        while at < len(text):
            length = self._length_at(text, at)
            if length:
                parts += (text[begun:at], MASK)
                begun = at + length
            at += length or 1
        return "".join([*parts, text[begun:]])

    def _length_at(self, text: str, at: int) -> int:
        """Return the length of the secret that begins here; also of a long one's beginning, which is no accident."""
        if text[at : at + self._width] not in self._heads:
            return 0
        alike = self._long.get(text[at : at + HEAD])
        if alike:  # the one with most characters in common stands beside the text's place in the order
            found = text[at : at + len(self._ordered[0])]
            place = bisect(alike, found)
            return max(_in_common(secret, found) for secret in alike[max(0, place - 1) : place + 1])
        return next(
            (length for length in range(HEAD, 0, -1) if text[at : at + length] in self._short.get(length, ())), 0
        )


class Secrets(frozenset[str]):
    """Secret values of one task, and the ``names`` that are declared sensitive for it."""

    names: frozenset[str]

    def __new__(cls, values: Iterable[str] = (), names: Iterable[str] = ()) -> Self:
        """Create the set."""
        secrets = super().__new__(cls, values)
        secrets.names = frozenset(names)
        return secrets

    @cached_property
    def search(self) -> Search:
        """The search for the values."""
        return Search(self)


def secrets_of(value: Any, names: Collection[str] = ()) -> Secrets:
    """Return the values that ``mask`` hides in a JSON value, as texts, and the given names."""
    return Secrets((text for text in _secrets(value, names, secret=False) if len(text) >= MIN_LENGTH), names)


def secret_parts(value: Any, names: Collection[str] = ()) -> Iterator[Any]:
    """Yield the parts of a JSON value that ``mask`` hides."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from [item] if is_secret(key, names) else secret_parts(item, names)
    elif isinstance(value, list):
        for item in value:
            yield from secret_parts(item, names)


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


def is_sealed(value: Any) -> bool:
    """Return whether a JSON value, or JSON text, is encrypted."""
    if isinstance(value, str):
        return value.startswith(f'{{"{SEALED}":')
    return isinstance(value, dict) and len(value) == 1 and isinstance(value.get(SEALED), str)


def redact(text: str, secrets: Iterable[str] = ()) -> str:
    """Return free text without the given secrets and without values after secret names (``password=…``)."""
    if is_sealed(text):
        return HIDDEN
    text = _NAMED.sub(rf"\g<name>\g<quote>{MASK}", _search(secrets).hide(text))
    if names := _names_of(secrets):
        text = _behind(names).sub(
            lambda found: f"{found[1]}{MASK}" if normal_name(found["name"]) in names else found[0], text
        )
    return _ADDRESS.sub(rf"\1:{MASK}@", _SCHEME.sub(rf"\1 {MASK}", text))


def redact_value(value: Any, secrets: Iterable[str] = ()) -> Any:
    """Return ``mask(value)`` and also mask the given secrets and passwords of URLs in its texts."""
    if is_sealed(value):
        return HIDDEN
    return _redact_value(mask(value, _names_of(secrets)), _search(secrets))


def _redact_value(value: Any, secrets: Search) -> Any:
    if isinstance(value, dict):
        return {key: _redact_value(item, secrets) for key, item in value.items()}
    if isinstance(value, list):
        return [_redact_value(item, secrets) for item in value]
    return _ADDRESS.sub(rf"\1:{MASK}@", secrets.hide(value)) if isinstance(value, str) else value


def _names_of(secrets: Iterable[str]) -> frozenset[str]:
    return secrets.names if isinstance(secrets, Secrets) else frozenset()


@lru_cache(maxsize=256)
def _behind(names: frozenset[str]) -> re.Pattern[str]:
    """Return a pattern for values after these names in free text, in any spelling of the names."""
    spelt = "|".join(re.escape(name).replace("_", "[_-]?") for name in sorted(names, key=len, reverse=True))
    return re.compile(
        rf"""((?<![\w-])(?P<name>{spelt})["']?\s*[:=]\s*)(?:"[^"]*"|'[^']*'|[^\s"',;&)}}\]]+)""", re.IGNORECASE
    )


def _in_common(one: str, other: str) -> int:
    """Return the number of first characters that two texts share."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((place for place, (left, right) in pairs if left != right), min(len(one), len(other)))


def _search(secrets: Iterable[str]) -> Search:
    return secrets.search if isinstance(secrets, Secrets) else Search(secrets)
