"""The OpenAPI document, and a page to read it and try the API."""

from importlib import import_module
from typing import Any

from django.apps import apps
from django.http import HttpResponse
from django.template.loader import render_to_string
from django.templatetags.static import static
from rest_framework.request import Request
from rest_framework.response import Response

from queue_app.api.base import AnyFormat, PublicView
from queue_app.api.errors import NotInstalled

DIST = "drf_spectacular_sidecar/swagger-ui-dist"


class SchemaView(PublicView):
    """The OpenAPI document; it reveals nothing that the source code does not."""

    content_negotiation_class = AnyFormat

    def get(self, request: Request) -> Response:
        """Return the OpenAPI document as JSON."""
        return Response(document(), content_type="application/vnd.oai.openapi+json")


class DocsView(PublicView):
    """A page to read the document, without inline code or external files."""

    content_negotiation_class = AnyFormat

    def get(self, request: Request) -> Any:
        """Return the page."""
        if not apps.is_installed("drf_spectacular_sidecar"):
            raise NotInstalled("Install the extra api-docs and add drf_spectacular_sidecar to INSTALLED_APPS.")
        context = {"dist": static(DIST), "schema": request.path.rstrip("/").removesuffix("/docs") + "/schema"}
        return HttpResponse(render_to_string("queue_app/api_docs.html", context))


def document() -> dict[str, Any]:
    """Return the OpenAPI document; raise ``NotInstalled``."""
    try:
        schema = import_module("queue_app.api.schema")
        generators = import_module("drf_spectacular.generators")
        settings = import_module("drf_spectacular.settings")
    except ImportError as error:
        raise NotInstalled("Install the extra api-docs: drf-spectacular generates the document.") from error
    with settings.patched_settings(schema.SETTINGS):
        found: dict[str, Any] = generators.SchemaGenerator().get_schema(request=None, public=True)
    return found
