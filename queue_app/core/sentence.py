"""Sentences in several languages: an English template and the values of its names.

Services return them. As text a sentence is English, so the API, the commands, logs and rows need to know nothing about
languages. The admin translates it for its reader (``dashboard.translation``). ``manage.py makemessages`` collects the
templates: the first argument of ``sentence``, the first two of ``sentence_n``, the second of ``sentence_as``. A part of
a sentence that varies is a value, and may be a sentence itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

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
