"""Short definitions of columns and permissions for the admin's pages."""

from collections.abc import Callable
from typing import Any

from django.contrib import admin
from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from queue_app.admin.task_detail import pretty
from queue_app.dashboard import labels


def permission(codename: str) -> Callable[[Any, HttpRequest], bool]:
    """Return a method of a ``ModelAdmin`` that checks whether the user has a permission."""

    def has_permission(_admin: Any, request: HttpRequest) -> bool:
        return request.user.has_perm(f"queue_app.{codename}")

    return has_permission


def column(title: Any, text: Callable[[Any], Any], **options: Any) -> Callable[[Any, Any], Any]:
    """Return a column of a list (or a field of a page) that shows ``text(object)``; options as ``admin.display``."""

    def show(_admin: Any, found: Any) -> Any:
        return text(found)

    admin.display(show, description=title, **options)
    return show


def time_column(name: str, title: Any) -> Callable[[Any, Any], Any]:
    """Return a column for the time in the field ``name``, written in the viewer's time zone."""

    def text(found: Any) -> Any:
        value = getattr(found, name)
        return None if value is None else labels.exact_moment(value)

    return column(title, text, ordering=name)


def counted(count: int, noun: str) -> str:
    """Return a number with its noun, such as ``1 task`` or ``2 tasks``."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def two_lines(first: Any, second: Any) -> SafeString:
    """Return a cell with a small second line."""
    return format_html('{}<br><small class="tq-below">{}</small>', first, second)


def preformatted(text: str) -> SafeString:
    """Return a text with its line breaks and spaces."""
    return format_html('<pre class="tq-pre">{}</pre>', text)


def json_block(value: Any) -> SafeString | str:
    """Return a JSON value, indented; "none" for an empty one."""
    return preformatted(pretty(value)) if value else _("none")
