"""The HTML page of an address of the API: its purpose, its answer, and forms with example bodies.

The pages of the framework need inline scripts and styles, which a strict Content Security Policy forbids, and
serializers for their forms. This page is a template, a script and a style sheet. Its forms send JSON and show the
answer.
"""

import inspect
import json
from typing import Any, Final

from django.apps import apps
from django.template.loader import render_to_string
from django.urls import resolve
from rest_framework.renderers import BaseRenderer
from rest_framework.utils.encoders import JSONEncoder

#: Name of an address -> addresses below it whose methods its page offers too.
RELATED: Final = {"task": ("priority",), "queue": ("pause", "resume"), "dead-letter": ("replay",)}
ROOT: Final = "/api/v1/"
PLACES: Final = (
    "tasks", "tasks/count", "queue/stats", "queues", "policies", "limits", "dlq", "workers",
    "admin/tasks", "admin/queue",
)  # fmt: skip
METHODS: Final = ("POST", "PUT", "PATCH", "DELETE")


class PageRenderer(BaseRenderer):
    """HTML, for browsers."""

    media_type = "text/html"
    format = "html"
    charset = "utf-8"

    def render(self, data: Any, accepted_media_type: str | None = None, renderer_context: Any = None) -> str:
        """Return the page that shows an answer."""
        view, request, response = (renderer_context[name] for name in ("view", "request", "response"))
        root = request.path.partition(ROOT)[0] + ROOT
        return render_to_string(
            "queue_app/api_page.html",
            {
                "title": inspect.getdoc(type(view)) or type(view).__name__,
                "about": _about(view, "get"),
                "path": request.get_full_path(),
                "status": f"{response.status_code} {response.status_text}",
                "answer": json.dumps(data, cls=JSONEncoder, indent=2, ensure_ascii=False),
                "example": f"curl -H 'Authorization: Bearer tq_…' '{request.build_absolute_uri()}'",
                "next": data.get("next") if isinstance(data, dict) else None,
                "places": [(place, root + place) for place in PLACES],
                "docs": root.removesuffix("v1/") + "docs",
                "forms": _forms(view, request),
            },
            request=request._request,  # noqa: SLF001 - for the CSRF token
        )


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
        if hasattr(each, method.lower())
    ]


def _about(view: Any, method: str) -> str:
    return (inspect.getdoc(getattr(view, method, None)) or "").replace("`", "")


def _example(view: Any, method: str) -> str | None:
    """Return the example body in the OpenAPI document; ``None`` for a method without a body."""
    if not apps.is_installed("drf_spectacular"):
        return None if method == "DELETE" else "{}"
    from queue_app.api.schema.endpoints import ENDPOINTS  # noqa: PLC0415 - its package needs the extra

    kind = view if isinstance(view, type) else type(view)
    found = ENDPOINTS.get((kind, method))
    if found is None or found.request_of(kind, method) is None:
        return None
    return json.dumps(found.example or {}, indent=2, ensure_ascii=False)
