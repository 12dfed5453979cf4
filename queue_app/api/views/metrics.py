"""The figures for Prometheus, for whom ``METRICS.ACCESS`` lets in."""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from typing import Any, Final

from django.apps import apps
from rest_framework.authentication import BaseAuthentication
from rest_framework.permissions import BasePermission
from rest_framework.renderers import BaseRenderer
from rest_framework.request import Request
from rest_framework.response import Response

from queue_app import conf
from queue_app.api.base import ApiView, Negotiation
from queue_app.metrics.text import of_process, of_queue

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
LOOPBACK: Final = ("127.", "::1", "::ffff:127.")
#: A proxy on this machine would lend its own address to the whole world; these tell that there is one.
FORWARDED: Final = ("HTTP_X_FORWARDED_FOR", "HTTP_FORWARDED", "HTTP_X_REAL_IP", "HTTP_X_FORWARDED_HOST")


class Scraper:
    """Stands for a program that may read the metrics, and nothing else."""

    is_authenticated = True
    is_active = True
    is_staff = False


class ScraperAuthentication(BaseAuthentication):
    """Let in who needs no name: by ``METRICS.TOKEN``, from this machine, or anybody, as ``METRICS.ACCESS`` says."""

    def authenticate(self, request: Request) -> tuple[Any, Any] | None:
        """Return the scraper, or ``None`` for somebody who has to say who they are."""
        settings = conf.get().metrics
        allowed = {"open": lambda _: True, "local": _is_local, "token": _has_token}.get(settings.access)
        return (Scraper(), None) if allowed is not None and allowed(request) else None


def _is_local(request: Request) -> bool:
    address = request.META.get("REMOTE_ADDR") or "127."  # a UNIX socket has no address
    return address.startswith(LOOPBACK) and not any(name in request.META for name in FORWARDED)


def _has_token(request: Request) -> bool:
    kind, _, token = request.headers.get("Authorization", "").partition(" ")
    wanted = conf.get().metrics.token
    return bool(wanted) and kind.lower() == "bearer" and hmac.compare_digest(token.strip().encode(), wanted.encode())


class MayReadMetrics(BasePermission):
    """For scrapers and staff."""

    def has_permission(self, request: Request, view: Any) -> bool:
        """Whether the caller may."""
        user: Any = request.user
        return isinstance(user, Scraper) or bool(user.is_active and user.is_staff)


class TextRenderer(BaseRenderer):
    """Text as it is."""

    media_type = "text/plain"
    format = "txt"
    charset = "utf-8"

    def render(self, data: Any, accepted_media_type: str | None = None, renderer_context: Any = None) -> Any:
        """Return the text."""
        return data


class AnyFormat(Negotiation):
    """There is one format, whatever is asked for; errors are JSON."""

    def select_renderer(self, request: Request, renderers: Any, format_suffix: str | None = None) -> Any:
        """Return the first, the one of errors."""
        return renderers[0], renderers[0].media_type


class MetricsView(ApiView):
    """Everything about the queue, and about this process where django-prometheus is installed."""

    permission_classes: Sequence[type[BasePermission]] = (MayReadMetrics,)
    content_negotiation_class = AnyFormat

    def get_authenticators(self) -> list[BaseAuthentication]:
        """Look at the scraper's own token before the others do."""
        return [ScraperAuthentication(), *super().get_authenticators()]

    def get(self, request: Request) -> Response:
        """Return the metrics; what a server that is down would have told is missing, and ``up`` says so."""
        text = of_queue() + (of_process() if apps.is_installed("django_prometheus") else b"")
        request.accepted_renderer = TextRenderer()
        return Response(text, content_type=CONTENT_TYPE, headers={"Cache-Control": "no-store"})
