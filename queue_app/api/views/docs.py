"""The OpenAPI document, and a page to read and try it."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from django.apps import apps
from django.http import HttpResponse
from django.template.loader import render_to_string
from django.templatetags.static import static
from rest_framework.permissions import AllowAny
from rest_framework.request import Request
from rest_framework.response import Response

from queue_app.api.base import AnyFormat, ApiView
from queue_app.api.errors import NotInstalled

DIST = "drf_spectacular_sidecar/swagger-ui-dist"


class _PublicView(ApiView):
    """The document tells nothing that the source does not."""

    authentication_classes = ()
    permission_classes = (AllowAny,)
    content_negotiation_class = AnyFormat


class SchemaView(_PublicView):
    """The OpenAPI document."""

    def get(self, request: Request) -> Response:
        """Return the OpenAPI document as JSON."""
        return Response(document(), content_type="application/vnd.oai.openapi+json")


class DocsView(_PublicView):
    """A page to read the document, without anything inline or from elsewhere."""

    def get(self, request: Request) -> Any:
        """Show the page."""
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
        raise NotInstalled("Install the extra api-docs: the document is made by drf-spectacular.") from error
    with settings.patched_settings(schema.SETTINGS):
        found: dict[str, Any] = generators.SchemaGenerator().get_schema(request=None, public=True)
    return found
