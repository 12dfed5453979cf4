"""The language of the reader: sentences of services, and stored words such as states, bands and kinds."""

from typing import Any, Final

from django.utils import formats
from django.utils.translation import get_language, gettext, ngettext
from django.utils.translation import gettext_noop as _noop

from queue_app.core.sentence import Sentence, filled

#: So that makemessages finds them.
TEXTS: Final = (
    # states of tasks, workers, dead letters, operations, workflows, the index
    _noop("blocked"), _noop("scheduled"), _noop("queued"), _noop("executing"), _noop("completed"), _noop("failed"),
    _noop("cancelled"), _noop("dead letter"), _noop("expired"), _noop("pending"), _noop("active"), _noop("draining"),
    _noop("stopped"), _noop("dead"), _noop("open"), _noop("replayed"), _noop("discarded"), _noop("running"),
    _noop("done"), _noop("compensating"), _noop("compensated"), _noop("deleting"), _noop("ready"), _noop("missing"),
    _noop("rebuilding"), _noop("loading"), _noop("unreachable"), _noop("paused"), _noop("held"), _noop("waiting"),
    _noop("cancelling"),
    # bands
    _noop("critical"), _noop("high"), _noop("normal"), _noop("low"), _noop("background"),
    # why tasks died
    _noop("retries exhausted"), _noop("timeout"), _noop("crash loop"),
    # what staff do
    _noop("cancel"), _noop("reprioritise"), _noop("replay"), _noop("retry"), _noop("run now"), _noop("delete"),
    _noop("reencrypt"), _noop("backfill"), _noop("simulate"), _noop("tasks"), _noop("dead letters"), _noop("ticks"),
    _noop("policies"),
    # schedules and steps
    _noop("due"), _noop("caught up"), _noop("manual"), _noop("skip"), _noop("last"), _noop("all"), _noop("allow"),
    _noop("queue one"), _noop("cancel previous"), _noop("step"), _noop("sleep"), _noop("signal"),
    # who changed it
    _noop("admin"), _noop("api"), _noop("command"), _noop("code"),
    # orders, and what limits and statistics are about
    _noop("oldest"), _noop("slowest"), _noop("attempts"), _noop("type"), _noop("key"), _noop("queue"), _noop("user"),
)  # fmt: skip


def translate(text: str) -> str:
    """Return a sentence in the active language; text that is none, such as an error of a program, stays as it is."""
    if not isinstance(text, Sentence) or (get_language() or "en").startswith("en"):
        return text
    if text.plural:
        return filled(text, ngettext(text.template, text.plural, int(text.values["n"])), _written)
    return filled(text, gettext(text.template), _written)


def translate_error(error: Exception) -> str:
    """Return the message of an error in the active language; ``str`` would forget what the sentence was made of."""
    text = error.args[0] if error.args else ""
    return translate(text) if isinstance(text, str) else str(error)


def _written(value: Any) -> str:
    if isinstance(value, str):
        return translate(value)
    number = value if value % 1 else int(value)
    return str(formats.number_format(number, use_l10n=True, force_grouping=True))


def word(stored: str) -> str:
    """Return a stored word for people: ``dead_letter`` as "dead letter"; one that is not known stays as it is."""
    return gettext(stored.replace("_", " ")) if stored else ""
