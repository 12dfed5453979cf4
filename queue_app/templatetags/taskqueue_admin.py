"""Tags and filters of the admin's pages. Loads without ``django.contrib.admin``."""

import re
from collections.abc import Callable
from typing import Any

import django
from django import template
from django.db import DatabaseError
from django.template import Context
from django.urls import reverse
from django.utils import formats, timezone
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from queue_app.core.sentence import sentence
from queue_app.dashboard import labels
from queue_app.dashboard.sentences import traceback_html, value_text
from queue_app.diagnose.overview import Link, overview_context
from queue_app.sql.database import atomic

register = template.Library()

#: Maximum number of characters of a value in a table.
MAX_LINE = 300


def _or_dash(text: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a filter that shows a dash for ``None``."""
    return lambda value: "-" if value is None else text(value)


register.filter("tq_ago", _or_dash(lambda time: labels.ago(time, timezone.now())))
register.filter("tq_age", _or_dash(labels.age))
register.filter("tq_band", labels.band_label)
register.filter("tq_change", labels.change)
register.filter("tq_duration", _or_dash(labels.duration))
register.filter("tq_json", labels.json_html)
register.filter("tq_lead", labels.lead)
register.filter("tq_last", lambda name: labels.breakable(name.rpartition(".")[2]))
register.filter("tq_line", lambda value: value_text(value)[:MAX_LINE])
_ID = re.compile(r"\b([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})\b")


@register.filter
def tq_linked(text: object, model: str) -> SafeString:
    """Return text with its times marked up, and with each id as a link to the page of that task or operation."""
    shown = (
        format_html('<a href="{}">{}</a>', reverse(f"admin:queue_app_{model}_change", args=[part]), part[-8:])
        if place % 2  # every second part is an id
        else labels.with_times(part)
        for place, part in enumerate(_ID.split(str(text)))
    )
    return format_html_join("", "{}", ((part,) for part in shown))


register.filter("tq_class", lambda name: labels.breakable(labels.class_name(name)))
register.filter("tq_name", labels.breakable)
register.filter("tq_number", _or_dash(lambda value: formats.number_format(value, use_l10n=True, force_grouping=True)))
register.filter("tq_status", labels.status_label)
register.filter("tq_time", _or_dash(labels.exact_moment))
register.filter("tq_when", lambda task: labels.when(task, timezone.now()))
register.filter("tq_priority", labels.priority_label)
register.filter("tq_translate", labels.translate)
register.filter("tq_rate", labels.rate)
register.filter("tq_short", labels.short_id)
register.filter("tq_word", lambda text: labels.word(str(text)))
register.filter("tq_times", lambda text: labels.with_times(str(text)))
register.filter("tq_words", lambda text: text.split())
register.filter("tq_traceback", lambda text: traceback_html(str(text)))
register.filter("tq_type", labels.type_label)
register.simple_tag(labels.sparkline, name="tq_spark")


@register.simple_tag
def tq_stats_url(kind: str, name: str) -> str:
    """Return the address of the page of a task type, user or concurrency key."""
    return reverse(f"admin:queue_app_taskstats_{kind}", args=[name])


@register.simple_tag
def tq_link(link: Link) -> str:
    """Return the address of a way to act."""
    return reverse(f"admin:queue_app_{link.page}", args=link.args) + (f"?{link.query}" if link.query else "")


@register.simple_tag(takes_context=True)
def taskqueue_overview(context: Context) -> dict[str, Any]:
    """Return the state of the queues and workers that the user may see."""
    return overview_context(context["request"].user)


@register.simple_tag(takes_context=True)
def taskqueue_verdict(context: Context) -> dict[str, Any]:
    """Return the verdict of the overview for the home page, which other apps share: it shows whatever happens."""
    try:
        with atomic():
            return overview_context(context["request"].user)
    except DatabaseError:
        return {"verdict": ("warn", sentence("The task queue cannot be read now"))}


@register.simple_tag
def tq_crumbs_are_list() -> bool:
    """Return whether this Django marks breadcrumbs up as a list."""
    return django.VERSION >= (6, 1)
