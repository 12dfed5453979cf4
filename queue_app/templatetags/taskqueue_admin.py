"""Tags and filters of the admin's pages. Loads without ``django.contrib.admin``."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import django
from django import template
from django.template import Context
from django.utils import formats, timezone
from django.utils.safestring import SafeString

from queue_app.core.priorities import Band
from queue_app.dashboard import labels
from queue_app.dashboard.sections import Section, sections
from queue_app.models import Task
from queue_app.services.read.stats import QueueSummary

register = template.Library()


@register.filter
def tq_duration(seconds: float | None) -> str:
    """Return seconds in words; a dash for none."""
    return "-" if seconds is None else labels.duration(seconds)


@register.filter
def tq_age(seconds: float | None) -> str:
    """Return for how long something has been going on; a dash for none."""
    return "-" if seconds is None else labels.age(seconds)


@register.filter
def tq_number(value: float | None) -> str:
    """Return a number with its thousands apart, as the locale writes it; a dash for none."""
    return "-" if value is None else formats.number_format(value, use_l10n=True, force_grouping=True)


@register.filter
def tq_words(value: str) -> list[str]:
    """Return the words of a text, to walk through."""
    return value.split()


@register.filter
def tq_ago(value: datetime | None) -> SafeString | str:
    """Return how long ago a time was, with the full time on hover; a dash for none."""
    return "-" if value is None else labels.ago(value, timezone.now())


@register.filter
def tq_time(value: datetime | None) -> SafeString | str:
    """Return a time to the second; the page's script writes it in the zone of whoever looks."""
    return "-" if value is None else labels.exact_moment(value)


@register.filter
def tq_json(text: str) -> SafeString:
    """Return JSON text with its names, texts and numbers told apart; everything in it is escaped."""
    return labels.json_html(text)


@register.filter
def tq_band(band: int) -> SafeString:
    """Return a band's label."""
    return labels.band_label(band)


@register.filter
def tq_status(task: Task) -> SafeString:
    """Return the label of a task's status."""
    return labels.status_label(task)


@register.filter
def tq_when(task: Task) -> SafeString:
    """Return how long a task waits, runs or ran."""
    return labels.when(task, timezone.now())


@register.filter
def tq_bands(summary: QueueSummary | None) -> list[tuple[Band, int]]:
    """Return (band, queued tasks) of the bands in which something waits."""
    return [] if summary is None else [(band, stats.depth) for band, stats in summary.bands.items() if stats.depth]


@register.simple_tag(takes_context=True)
def taskqueue_overview(context: Context) -> dict[str, Any]:
    """Return the state of queues and workers, as far as the user may see them."""
    from queue_app.admin.live import overview_context  # noqa: PLC0415 - this library loads without the admin, too

    return overview_context(context["request"].user)


@register.simple_tag
def taskqueue_sections(app_list: list[dict[str, Any]]) -> list[Section]:
    """Return the app's pages in groups, as far as the user may see them."""
    return sections([model for app in app_list for model in app["models"]])


@register.simple_tag
def tq_crumbs_are_list() -> bool:
    """Say whether this Django marks breadcrumbs up as a list."""
    return django.VERSION >= (6, 1)


@register.simple_tag
def tq_spark(values: list[int], title: str = "") -> SafeString:
    """Return a small line of values, one a minute, as SVG; nothing for fewer than two."""
    return labels.sparkline(values, title)
