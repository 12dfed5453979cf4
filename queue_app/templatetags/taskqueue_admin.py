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
register.filter("tq_age", labels.age_or_dash)
register.filter("tq_band", labels.band_label)
register.filter("tq_json", labels.json_html)
register.filter("tq_status", labels.status_label)
register.simple_tag(labels.sparkline, name="tq_spark")


@register.filter
def tq_words(text: str) -> list[str]:
    """Return the words of a text."""
    return text.split()


@register.filter
def tq_duration(seconds: float | None) -> str:
    """Return a length of time in words, or a dash."""
    return "-" if seconds is None else labels.duration(seconds)


@register.filter
def tq_number(value: float | None) -> str:
    """Return a number with the locale's thousands separators, or a dash."""
    return "-" if value is None else formats.number_format(value, use_l10n=True, force_grouping=True)


@register.filter
def tq_ago(value: datetime | None) -> SafeString | str:
    """Return how long ago a time was, with the full time on hover, or a dash."""
    return "-" if value is None else labels.ago(value, timezone.now())


@register.filter
def tq_time(value: datetime | None) -> SafeString | str:
    """Return a time to the second, or a dash; the page's script writes it in the viewer's time zone."""
    return "-" if value is None else labels.exact_moment(value)


@register.filter
def tq_when(task: Task) -> SafeString:
    """Return how long a task waits, runs or ran."""
    return labels.when(task, timezone.now())


@register.filter
def tq_bands(summary: QueueSummary | None) -> list[tuple[Band, int]]:
    """Return (band, number of queued tasks) of the bands with queued tasks."""
    return [] if summary is None else [(band, stats.depth) for band, stats in summary.bands.items() if stats.depth]


@register.simple_tag(takes_context=True)
def taskqueue_overview(context: Context) -> dict[str, Any]:
    """Return the state of the queues and workers that the user may see."""
    from queue_app.admin.live import overview_context  # noqa: PLC0415 - this library loads without the admin, too

    return overview_context(context["request"].user)


@register.simple_tag
def taskqueue_sections(app_list: list[dict[str, Any]]) -> list[Section]:
    """Return the app's pages in sections."""
    return sections([model for app in app_list for model in app["models"]])


@register.simple_tag
def tq_crumbs_are_list() -> bool:
    """Return whether this Django marks breadcrumbs up as a list."""
    return django.VERSION >= (6, 1)
