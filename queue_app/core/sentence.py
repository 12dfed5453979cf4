"""Sentences in several languages: an English template and the values of its names.

Services return them. As text a sentence is English, so the API, the commands, logs and rows need to know nothing about
languages. The admin translates it for its reader (``dashboard.labels``). ``manage.py makemessages`` collects the
templates: the first argument of ``sentence``, the first two of ``sentence_n``, the second of ``sentence_as``. A part of
a sentence that varies is a value, and may be a sentence itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

_UNITS: Final = (("d", 86_400), ("h", 3600), ("min", 60), ("s", 1))
#: Value of a name: a number is written with separators, a nested sentence is translated, other text stays as it is.
type Value = str | int | float


class Sentence(str):
    """English text that knows the template and the values that it was made of; ``sentence`` makes one."""

    __slots__ = ("plural", "template", "values")

    template: str
    plural: str
    values: Mapping[str, Value]


def sentence(template: str, /, **values: Value) -> str:
    """Return a sentence: a template with names such as ``%(queue)s``, and their values."""
    return _make(template, "", values)


def sentence_n(singular: str, plural: str, n: int, /, **values: Value) -> str:
    """Return a sentence whose words depend on the number ``n``, which both templates may name."""
    return _make(singular, plural, {"n": n, **values})


def sentence_as(english: str, template: str, /, **values: Value) -> str:
    """Return a sentence with a better English text than its template makes."""
    made = Sentence(english)
    made.template, made.plural, made.values = template, "", values
    return made


def joined(*parts: str) -> str:
    """Return sentences as one text, with spaces between them; empty ones are left out."""
    return listed([part for part in parts if part], " ")


def listed(parts: Iterable[str], separator: str = ", ") -> str:
    """Return several texts or sentences as one, in which each can still be translated."""
    values = {str(number): part for number, part in enumerate(parts)}
    return _make(separator.join(f"%({name})s" for name in values), "", values) if values else ""


def some_of(parts: Sequence[str], most: int, total: int = 0) -> str:
    """Return the first ``most`` of several texts as one text that ends with how many more there are, of ``total``."""
    shown = parts[:most]
    more = (total or len(parts)) - len(shown)
    return sentence("%(tasks)s and %(n)s more", tasks=listed(shown), n=more) if more > 0 else listed(shown)


def as_json(text: str) -> Any:
    """Return a text as plain JSON, from which ``from_json`` makes it again."""
    if not isinstance(text, Sentence):
        return text
    values = {name: as_json(value) if isinstance(value, str) else value for name, value in text.values.items()}
    return {"template": text.template, "plural": text.plural, "values": values}


def from_json(stored: Any) -> str:
    """Return the text that ``as_json`` stored."""
    if not isinstance(stored, Mapping):
        return str(stored)
    values = {name: from_json(each) if isinstance(each, Mapping) else each for name, each in stored["values"].items()}
    return _make(stored["template"], stored["plural"], values)


def filled(sentence: Sentence, pattern: str, write: Callable[[Any], str]) -> str:
    """Return a template, translated or not, with the sentence's values as ``write`` formats them."""
    return pattern % {name: write(value) for name, value in sentence.values.items()}


def _make(template: str, plural: str, values: Mapping[str, Value]) -> Sentence:
    pattern = plural if plural and values["n"] != 1 else template
    made = Sentence(pattern % {name: _in_english(value) for name, value in values.items()})
    made.template, made.plural, made.values = template, plural, values
    return made


def _in_english(value: Value) -> str:
    if isinstance(value, str):
        return value
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"


def duration(seconds: float) -> str:
    """Return a length of time in at most two units, such as ``4 min 12 s``; negative ones as 0."""
    seconds = max(0.0, seconds)
    if seconds < 0.9995:  # noqa: PLR2004 - more would round to 1000 ms
        return f"{seconds * 1000:.0f} ms"
    if seconds < 10:  # noqa: PLR2004 - above, tenths do not matter
        return f"{seconds:.1f}".removesuffix(".0") + " s"
    rest = int(seconds)
    for position, (unit, size) in enumerate(_UNITS):
        if rest >= size:
            text = f"{rest // size} {unit}"
            if position + 1 < len(_UNITS) and rest % size:
                smaller, smaller_size = _UNITS[position + 1]
                part = rest % size // smaller_size
                return f"{text} {part} {smaller}" if part else text
            return text
    return "0 s"


def age(seconds: float) -> str:
    """Return an age in whole seconds; the clocks of pages and servers differ by fractions."""
    return sentence("under 1 s") if seconds < 1 else duration(int(seconds))
