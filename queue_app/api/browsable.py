"""The HTML page of an address of the API: its purpose, its answer, and forms with example bodies.

The pages of the framework need inline scripts and styles, which a strict Content Security Policy forbids, and
serializers for their forms. This page is a template, a script and a style sheet. Its forms send JSON and show the
answer.
"""

import inspect
import json
import re
from typing import Any, Final

from django.template.loader import render_to_string
from django.urls import resolve
from django.utils.html import format_html
from django.utils.safestring import SafeString
from rest_framework.renderers import BaseRenderer
from rest_framework.utils.encoders import JSONEncoder

from queue_app.api.examples import examples
from queue_app.api.serializers.base import properties
from queue_app.dashboard.labels import marked
from queue_app.models.queue import NAME_PATTERN

#: Name of an address -> addresses below it whose methods its page offers too.
RELATED: Final = {"task": ("priority",), "queue": ("pause", "resume"), "dead-letter": ("replay",)}
ROOT: Final = "/api/v1/"
PLACES: Final = (
    "tasks", "tasks/count", "queue/stats", "queues", "policies", "limits", "schedules", "workflows", "dlq", "workers",
    "admin/tasks", "admin/queue",
)  # fmt: skip
#: Field -> the collection of the object that it names.
ADDRESSES: Final = {
    "task_id": "tasks", "parent_id": "tasks", "operation_id": "operations", "workflow_id": "workflows",
    "schedule_id": "schedules", "dead_letter_id": "dlq", "queue": "queues",
}  # fmt: skip
#: Field -> collections whose objects it names in their own answers.
OF_OWN: Final = {"id": frozenset({"tasks", "dlq", "limits", "schedules", "workflows"}), "name": frozenset({"queues"})}
_PAIR: Final = re.compile(r'"(?P<name>[a-z_]+)": "(?P<value>[^"&\s]{1,100})"')
_ID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_NAME: Final = re.compile(NAME_PATTERN)
METHODS: Final = ("POST", "PUT", "PATCH", "DELETE")


class PageRenderer(BaseRenderer):
    """HTML, for browsers."""

    media_type = "text/html"
    format = "html"
    charset = "utf-8"

    def render(self, data: Any, accepted_media_type: str | None = None, renderer_context: Any = None) -> str:
        view, request, response = (renderer_context[name] for name in ("view", "request", "response"))
        root = request.path.partition(ROOT)[0] + ROOT
        return render_to_string(
            "queue_app/api_page.html",
            {
                "title": _title(view, request),
                "user": request.user.get_username(),
                "about": _about(view, "get"),
                "path": request.get_full_path(),
                "status": f"{response.status_code} {response.status_text}",
                "answer": linked(json.dumps(data, cls=JSONEncoder, indent=2, ensure_ascii=False), root, request.path),
                "examples": examples("GET", request.build_absolute_uri()),
                "filters": (filters := _filters(view, request)),
                "filtered": any(value for _name, value, _about in filters),
                "next": data.get("next") if isinstance(data, dict) else None,
                "places": [(place, root + place) for place in PLACES],
                "docs": root.removesuffix("v1/") + "docs",
                "forms": _forms(view, request),
            },
            request=request._request,  # noqa: SLF001 - for the CSRF token
        )


def _title(view: Any, request: Any) -> str:
    """Return what a view says of itself, or the name of its address."""
    own, match = inspect.cleandoc(vars(type(view)).get("__doc__") or ""), request.resolver_match
    return own or (match.url_name or "" if match else "").replace("-", " ").capitalize()


def _forms(view: Any, request: Any) -> list[dict[str, Any]]:
    """Return a form for each changing method of this address and of its related addresses."""
    path = request.path.rstrip("/")
    found = [(path, view)]
    name = request.resolver_match.url_name if request.resolver_match else ""
    below = request.path_info.rstrip("/")
    for end in RELATED.get(name, ()):
        callback: Any = resolve(f"{below}/{end}").func
        found.append((f"{path}/{end}", callback.view_class))
    return [
        {"method": method, "path": address, "about": _about(each, method.lower()), "body": _example(each, method)}
        for address, each in found
        for method in METHODS
        if method in each.accepted
    ]


def _filters(view: Any, request: Any) -> list[tuple[str, str, str]]:
    """Return (name, value, description) of the parameters of the address's query."""
    accepted = view.accepted.get("GET")
    found = properties(accepted.query, in_body=False) if accepted and accepted.query else {}
    return [
        (name, ",".join(request.query_params.getlist(name)), str(schema.get("description", "")))
        for name, schema in found.items()
        if not schema.get("deprecated")
    ]


def linked(text: str, root: str, path: str) -> SafeString:
    """Return a JSON text as HTML, in which the ids of objects, and the names of queues, lead to their addresses."""
    own = path.removeprefix(root).split("/")[0]

    def mark(found: re.Match[str]) -> SafeString | str:
        name, value = found["name"], found["value"]
        place = ADDRESSES.get(name) or (own if name in {"id", "name"} and own in OF_OWN[name] else None)
        if place is None or not (_ID.fullmatch(value) or (place == "queues" and _NAME.match(value))):
            return found[0]
        return format_html('&quot;{0}&quot;: &quot;<a href="{1}{2}/{3}">{3}</a>&quot;', name, root, place, value)

    return marked(_PAIR, text, mark)


def _about(view: Any, method: str) -> str:
    return (inspect.getdoc(getattr(view, method, None)) or "").replace("`", "")


def _example(view: Any, method: str) -> str | None:
    """Return an example of the body; ``None`` for a method without one."""
    body = view.accepted[method].body
    return None if body is None else json.dumps(body.example or {}, indent=2, ensure_ascii=False)
