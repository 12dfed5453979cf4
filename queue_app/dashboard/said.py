"""The sentences of services in the language of the reader."""

from typing import Any

from django.utils import formats
from django.utils.translation import get_language, gettext, ngettext

from queue_app.core.sentence import Sentence, filled


def said(text: str) -> str:
    """Return a sentence in the active language; text that is none, such as an error of a program, stays as it is."""
    if not isinstance(text, Sentence) or (get_language() or "en").startswith("en"):
        return text
    if text.plural:
        return filled(text, ngettext(text.template, text.plural, int(text.values["n"])), _written)
    return filled(text, gettext(text.template), _written)


def said_error(error: Exception) -> str:
    """Return the message of an error in the active language; ``str`` would forget what the sentence was made of."""
    text = error.args[0] if error.args else ""
    return said(text) if isinstance(text, str) else str(error)


def _written(value: Any) -> str:
    if isinstance(value, str):
        return said(value)
    number = value if value % 1 else int(value)
    return str(formats.number_format(number, use_l10n=True, force_grouping=True))
