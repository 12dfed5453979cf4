"""The view that all endpoints extend.

It names every policy itself, so that the settings of the project it is installed in change
nothing: who may call, what is read, how answers look.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from http import HTTPStatus
from types import MappingProxyType
from typing import Any, Final, NoReturn

from django.apps import apps
from django.db import transaction
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.utils.encoding import iri_to_uri
from rest_framework import exceptions, negotiation
from rest_framework.authentication import (
    BaseAuthentication,
    BasicAuthentication,
    SessionAuthentication,
    TokenAuthentication,
)
from rest_framework.metadata import SimpleMetadata
from rest_framework.parsers import JSONParser
from rest_framework.permissions import SAFE_METHODS, BasePermission, IsAuthenticated
from rest_framework.renderers import BaseRenderer, JSONRenderer
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.throttling import BaseThrottle
from rest_framework.views import APIView

from queue_app import conf
from queue_app.api import errors
from queue_app.api.body import check_headers, read_object
from queue_app.api.keys import KeyAuthentication, check_scope
from queue_app.api.throttles import ScopedThrottle
from queue_app.api.visibility import without_payload
from queue_app.core import trace
from queue_app.services.control import audit
from queue_app.sql.database import atomic

ANYTHING: Final = "*/*"


class PasswordAuthentication(BasicAuthentication):
    """HTTP Basic that refuses names which no database could hold."""

    www_authenticate_realm = "task queue"

    def authenticate_credentials(self, userid: str, password: str, request: Any = None) -> Any:
        """Return (user, None); raise ``AuthenticationFailed``."""
        if "\x00" in userid or "\x00" in password:
            raise exceptions.AuthenticationFailed
        return super().authenticate_credentials(userid, password, request)


class PlainJSON(JSONRenderer):
    """JSON in UTF-8, whatever REST_FRAMEWORK says."""

    ensure_ascii = False
    compact = True
    strict = True


class ProblemJSON(PlainJSON):
    """For clients that accept the media type of problems alone."""

    media_type = errors.CONTENT_TYPE
    format = "problem"


class Negotiation(negotiation.DefaultContentNegotiation):
    """Choose by the Accept header; a ?format= that nothing renders is not acceptable, not missing."""

    def select_renderer(self, request: Request, renderers: Iterable[BaseRenderer], format_suffix: Any = None) -> Any:
        """Return the renderer and its media type; the first one at once for whoever takes anything, or just that."""
        accept = request.META.get("HTTP_ACCEPT", ANYTHING)
        first = next(iter(renderers))
        if accept in {ANYTHING, first.media_type} and not request.META.get("QUERY_STRING"):
            return first, first.media_type
        return super().select_renderer(request, renderers, format_suffix)

    def filter_renderers(self, renderers: Iterable[BaseRenderer], format: str) -> list[BaseRenderer]:  # noqa: A002
        """Return the renderers of a format; raise ``NotAcceptable`` when there is none."""
        named = [renderer for renderer in renderers if renderer.format == format]
        found = [renderer for renderer in named if not isinstance(renderer, ProblemJSON)]  # only errors are problems
        if not found:
            raise exceptions.NotAcceptable
        return found


class AnyFormat(Negotiation):
    """For answers that are no document: whatever is accepted, and ?format= means something else."""

    def select_renderer(self, request: Request, renderers: Iterable[BaseRenderer], format_suffix: Any = None) -> Any:
        """Return the renderer of errors."""
        renderer = next(iter(renderers))
        return renderer, renderer.media_type


class ApiView(APIView):
    """An endpoint for users who say who they are; its errors are problem documents."""

    permission_classes: Sequence[type[BasePermission]] = (IsAuthenticated,)
    authentication_classes: Sequence[type[BaseAuthentication]] = (PasswordAuthentication, SessionAuthentication)
    parser_classes = (JSONParser,)
    renderer_classes = (PlainJSON, ProblemJSON)
    content_negotiation_class = Negotiation
    metadata_class = SimpleMetadata
    throttle_classes: Sequence[type[BaseThrottle]] = (ScopedThrottle,)
    #: The limit that the calls of a method count for, where it is not that of reads.
    throttle_scopes: Mapping[str, str] = MappingProxyType({})
    #: What a key that is limited must be allowed, method by method; staff's views ask for permissions by themselves.
    key_scopes: Mapping[str, str] = MappingProxyType({})
    #: Shows answers to people; ``queue_app.urls`` names it, for a page knows what all the views offer.
    page_class: type[BaseRenderer] | None = None
    versioning_class = None
    #: Whether what it changes goes to the audit log; a task that is submitted is its own record.
    records_actions = True
    #: How many times as large as usual a body may be.
    body_factor = 1
    #: What the request carried, once it has been read: it can be read once only.
    _body: Mapping[str, Any] = MappingProxyType({})

    @classmethod
    def as_view(cls, **initkwargs: Any) -> Any:
        """Return the view, without the transaction that ATOMIC_REQUESTS would put around it.

        Each service commits by itself; the index hears of a task before the answer is written.
        """
        view = super().as_view(**initkwargs)
        return transaction.non_atomic_requests(using=conf.load()[0].database_alias)(view)

    def get_authenticators(self) -> list[BaseAuthentication]:
        """Return token authentication too where its app is installed, first: it names the scheme in a 401."""
        classes = list(self.authentication_classes)
        if classes and apps.is_installed("rest_framework.authtoken"):
            classes.insert(0, TokenAuthentication)
        if classes:
            classes.insert(0, KeyAuthentication)
        return [authentication() for authentication in classes]

    def get_renderers(self) -> list[Any]:
        """Return JSON, and where somebody looks at what is not open to all, a page for people too."""
        renderers = super().get_renderers()
        if self.page_class is not None and self.request.method == "GET" and self.authentication_classes:
            renderers.append(self.page_class())
        return renderers

    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        """Answer within the trace that the caller names, so that tasks which it submits belong to it."""
        with trace.use(trace.parse(request.META.get("HTTP_TRACEPARENT", "")) or trace.current.get()):
            return super().dispatch(request, *args, **kwargs)

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        """Refuse unfit bodies before the checks of the session may read them."""
        check_headers(request._request, self.body_factor)  # noqa: SLF001 - the wrapped request of Django
        audit.begin()
        super().initial(request, *args, **kwargs)
        scope = self.key_scopes.get(request.method or "")
        if scope is not None:
            check_scope(request, scope)

    def throttle_scope(self, request: Request) -> str:
        """Return the limit that this call counts for."""
        return self.throttle_scopes.get(request.method or "", "reads")

    def finalize_response(self, request: Request, response: Any, *args: Any, **kwargs: Any) -> Any:
        """Record what was changed, unless it was recorded in the transaction of the change (see ``recording``)."""
        changed = request.method not in SAFE_METHODS and HTTPStatus(response.status_code).is_success
        if changed and self.records_actions and not audit.has_recorded():
            self._record(request)
        is_page = isinstance(getattr(request, "accepted_renderer", None), self.page_class or ())
        if is_page and isinstance(response, Response):
            response.content_type = None  # that of the page, also for a problem
        return super().finalize_response(request, response, *args, **kwargs)

    @contextmanager
    def recording(self, request: Request) -> Iterator[None]:
        """Change something within: the change and its record are committed together, and then told to the index."""
        with atomic():
            yield
            if self.records_actions and not audit.has_recorded():
                self._record(request)

    def _record(self, request: Request) -> None:
        if self._body.get("dry_run"):
            return
        match = request.resolver_match
        name, names = (match.url_name, match.kwargs) if match else (type(self).__name__, {})
        target, _, action = str(name).partition("-")
        audit.record(
            f"{action or target}.{str(request.method).lower()}", target, list(names.values()),
            by=self.username(request), via=audit.API,
            after={"request": without_payload(self._body)} if self._body else {},
            reason=str(self._body.get("reason") or ""),
        )  # fmt: skip

    def get_exception_handler(self) -> Callable[[Exception, dict[str, Any]], Response]:
        """Return the one table of errors."""
        return errors.handle

    def json_body(self, request: Request, *, required: bool = True) -> dict[str, Any]:
        """Return the JSON object that the request carries."""
        body = read_object(request._request, required=required, factor=self.body_factor)  # noqa: SLF001 - unparsed
        self._body = body
        return body

    def address(self, request: Request, path: str) -> str:
        """Return the absolute address of a path from the root, as ``build_absolute_uri`` does for any address."""
        return str(iri_to_uri(f"{request.scheme}://{request.get_host()}{path}"))

    def username(self, request: Request) -> str:
        """Return the name under which the caller's tasks are kept."""
        name: str = request.user.get_username()
        return name


class NotFoundView(ApiView):
    """Answer addresses of the API that do not exist, so that no HTML page does."""

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> NoReturn:
        """Refuse whatever is asked."""
        raise exceptions.NotFound
