"""The OpenAPI document, and a page to read it."""

import json
from functools import cache
from importlib import import_module
from threading import Lock
from typing import Any, Final

from django.conf import settings
from django.http import HttpResponse
from django.template.loader import render_to_string
from rest_framework.exceptions import Throttled
from rest_framework.request import Request

from queue_app.api.base import AnyFormat, PlainJSON, PublicView
from queue_app.api.errors import NotInstalled
from queue_app.api.reference import sections
from queue_app.api.throttles import schemas

#: Requests for the document from one address in a minute and process.
SCHEMAS_PER_MINUTE: Final = 120


class SchemaView(PublicView):
    """The OpenAPI document; it reveals nothing that the source code does not."""

    content_negotiation_class = AnyFormat

    def get(self, request: Request) -> HttpResponse:
        """Return the OpenAPI document as JSON."""
        caller = request.META.get("REMOTE_ADDR") or ""
        wait = schemas.wait(caller, limit=SCHEMAS_PER_MINUTE)
        if wait is not None:
            raise Throttled(wait)
        schemas.add(caller)
        return HttpResponse(_encoded(settings.ROOT_URLCONF), content_type="application/vnd.oai.openapi+json")


class DocsView(PublicView):
    """A page to read the document, without scripts."""

    content_negotiation_class = AnyFormat

    def get(self, request: Request) -> Any:
        """Return the API reference as a page."""
        found = json.loads(_encoded(settings.ROOT_URLCONF))
        context = {
            "info": found["info"],
            "sections": sections(found, request.build_absolute_uri("/").rstrip("/")),
            "schema": request.path.rstrip("/").removesuffix("/docs") + "/schema",
        }
        return HttpResponse(render_to_string("queue_app/api_docs.html", context))


_lock: Final = Lock()


@cache
def _made(_urls: str) -> bytes:
    return PlainJSON().render(document())


def _encoded(urls: str) -> bytes:
    """Return the document for a URL configuration; it takes a second to make, so it is made once."""
    with _lock:
        return _made(urls)


def document() -> dict[str, Any]:
    """Return the OpenAPI document; raise ``NotInstalled``."""
    try:
        schema = import_module("queue_app.api.schema")
        generators = import_module("drf_spectacular.generators")
        spectacular = import_module("drf_spectacular.settings")
    except ImportError as error:
        raise NotInstalled("Install the extra api-docs: drf-spectacular generates the document.") from error
    with spectacular.patched_settings(schema.SETTINGS):
        found: dict[str, Any] = generators.SchemaGenerator().get_schema(request=None, public=True)
    return found
