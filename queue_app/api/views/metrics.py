"""Metrics for Prometheus, for the callers that ``METRICS.ACCESS`` admits."""

import hmac
import re
from typing import Any, Final

from django.apps import apps
from django.http import HttpResponse
from rest_framework.authentication import BaseAuthentication
from rest_framework.permissions import BasePermission
from rest_framework.request import Request

from queue_app import conf
from queue_app.api.base import AnyFormat, ApiView, accepts
from queue_app.metrics.exposition import of_process, of_queue

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
LOOPBACK: Final = ("127.", "::1", "::ffff:127.")
#: Headers that reveal a proxy on this machine, which would lend its local address to remote callers.
FORWARDED: Final = ("HTTP_X_FORWARDED_FOR", "HTTP_FORWARDED", "HTTP_X_REAL_IP", "HTTP_X_FORWARDED_HOST")


class Scraper:
    """A program that may read the metrics and nothing else."""

    is_authenticated = True
    is_active = True
    is_staff = False


class ScraperAuthentication(BaseAuthentication):
    """Admit scrapers without a user: by token, from this machine, or all, depending on ``METRICS.ACCESS``."""

    def authenticate(self, request: Request) -> tuple[Any, Any] | None:
        """Return the scraper, or ``None`` for a caller who must authenticate."""
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
    """Scrapers and staff."""

    def has_permission(self, request: Request, view: Any) -> bool:
        """Return whether the caller is one of them."""
        user: Any = request.user
        return isinstance(user, Scraper) or bool(user.is_active and user.is_staff)


#: The labels that name a band.
_NORMAL: Final = re.compile(rb'\b(priority|from|to)="normal"')


class MetricsView(ApiView):
    """Metrics of the queue, and of this process if django-prometheus is installed."""

    permission_classes = (MayReadMetrics,)
    content_negotiation_class = AnyFormat
    uses_database = False  # it reads on threads of its own

    def get_authenticators(self) -> list[BaseAuthentication]:
        """Try the token of scrapers first."""
        return [ScraperAuthentication(), *super().get_authenticators()]

    @accepts("view_queue")
    def get(self, request: Request) -> HttpResponse:
        """Return the metrics; if a server is away, its metrics are missing and its ``up`` is 0."""
        text = of_queue() + (of_process() if apps.is_installed("django_prometheus") else b"")
        if conf.get().says_medium:
            text = _NORMAL.sub(rb'\1="medium"', text)
        return HttpResponse(text, content_type=CONTENT_TYPE, headers={"Cache-Control": "no-store"})
