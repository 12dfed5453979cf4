"""The status of a task on a page of the project: ``{% load taskqueue %}{% task_status result %}``."""

from typing import Any

from django import template
from django.core.exceptions import ImproperlyConfigured
from django.template import Context
from django.template.loader import render_to_string
from django.templatetags.static import static
from django.utils.html import format_html
from django.utils.safestring import SafeString

from queue_app.api.views.status_page import status_of
from queue_app.core.ids import parse_id
from queue_app.models import Task
from queue_app.sql.database import alias

register = template.Library()


@register.simple_tag(takes_context=True)
def task_status(context: Context, result: Any) -> SafeString | str:
    """Return the status of a task, given as a result, a row or an id, and the script that keeps it up to date.

    Another user's task is not shown. Needs the context processor ``request``.
    """
    request = context.get("request")
    if request is None:
        raise ImproperlyConfigured(
            "{% task_status %} needs the request: add django.template.context_processors.request to the context"
            " processors of TEMPLATES, or pass the request to render()."
        )
    task = Task.objects.using(alias()).filter(pk=parse_id(getattr(result, "id", result))).first()
    if task is None or (task.user and task.user != request.user.get_username()):
        return ""
    values = status_of(task, request)
    inner = render_to_string("queue_app/status_fragment.html", values, request)
    if values["has_ended"]:
        return format_html("<div>{}</div>", inner)
    page = '<div data-task-status="{}?part" aria-live="polite">{}</div><script src="{}" defer></script>'
    return format_html(page, values["url"], inner, static("queue_app/status.js"))
