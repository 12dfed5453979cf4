"""The view that all endpoints extend.

It sets every policy itself, so that the settings of the project do not change who may call an endpoint, how a request
is read, or how an answer looks.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from types import MappingProxyType
from typing import Any, Final, NamedTuple, NoReturn
from uuid import UUID

from django.apps import apps
from django.core.exceptions import ImproperlyConfigured
from django.db import transaction
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.urls import URLPattern, re_path
from django.utils.encoding import iri_to_uri
from rest_framework import exceptions, negotiation
from rest_framework.authentication import BaseAuthentication, SessionAuthentication, TokenAuthentication
from rest_framework.metadata import SimpleMetadata
from rest_framework.parsers import JSONParser
from rest_framework.permissions import AllowAny, BasePermission, IsAuthenticated
from rest_framework.renderers import BaseRenderer, JSONRenderer
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.throttling import BaseThrottle
from rest_framework.views import APIView

from queue_app import conf
from queue_app.api import errors
from queue_app.api.access import check_scope, staff_with
from queue_app.api.authentication import KeyAuthentication, PasswordAuthentication
from queue_app.api.body import RequestBody
from queue_app.api.headers import KEY_HEADER, once as answer_once
from queue_app.api.serializers.base import Body, Query, shared
from queue_app.api.serializers.kinds import uuid_of
from queue_app.api.throttles import ScopedThrottle
from queue_app.api.waiting import Database, Place, waiter
from queue_app.core import trace
from queue_app.exceptions import InvalidTaskData
from queue_app.models import ApiKey
from queue_app.services.control import audit
from queue_app.services.control.api_keys import is_in_force
from queue_app.sql.database import atomic

ANYTHING: Final = "*/*"
#: Maximum age of what a waiting request knows about its key.
KEY_SECONDS: Final = 1.0
#: Digits of the largest number in an address.
ID_DIGITS: Final = 18
#: The scope depends on the body: the view calls ``check_scope`` itself.
BY_CONTENT: Final = "by content"


class PlainJSON(JSONRenderer):
    """JSON in UTF-8, independent of the REST_FRAMEWORK setting."""

    ensure_ascii = False
    compact = True
    strict = True


class ProblemJSON(PlainJSON):
    """For clients that accept only the media type of problem documents."""

    media_type = errors.CONTENT_TYPE
    format = "problem"


class Negotiation(negotiation.DefaultContentNegotiation):
    """Choose by the Accept header; answer an unknown ?format= with 406 instead of 404."""

    def select_renderer(self, request: Request, renderers: Iterable[BaseRenderer], format_suffix: Any = None) -> Any:
        """Return the renderer and its media type; take a short cut if the first one will do."""
        accept = request.META.get("HTTP_ACCEPT", ANYTHING)
        first = next(iter(renderers))
        if accept in {ANYTHING, first.media_type} and not request.META.get("QUERY_STRING"):
            return first, first.media_type
        return super().select_renderer(request, renderers, format_suffix)

    def filter_renderers(self, renderers: Iterable[BaseRenderer], format: str) -> list[BaseRenderer]:  # noqa: A002
        """Return the renderers of a format; raise ``NotAcceptable`` if there is none."""
        named = [renderer for renderer in renderers if renderer.format == format]
        found = [renderer for renderer in named if not isinstance(renderer, ProblemJSON)]  # only errors are problems
        if not found:
            raise exceptions.NotAcceptable
        return found


class AnyFormat(Negotiation):
    """For answers in one fixed format: ignore the Accept header and ?format=; errors are JSON."""

    def select_renderer(self, request: Request, renderers: Iterable[BaseRenderer], format_suffix: Any = None) -> Any:
        """Return the renderer of errors."""
        renderer = next(iter(renderers))
        return renderer, renderer.media_type


class Accepted(NamedTuple):
    """What a method of a view accepts and answers."""

    scope: str = ""  # what a restricted key needs, or ``BY_CONTENT``
    body: type[Body] | None = None  # the body of a method without one is not read
    query: type[Query] | None = None
    throttle: str = "reads"  # the rate limit
    permission: type[BasePermission] | None = None
    headers: tuple[str, ...] = ()
    # For the OpenAPI document, which describes the methods with an ``id``.
    id: str = ""
    tag: str = ""  # by default the module of the view
    answer: str = ""  # its name in ``COMPONENTS``
    status: int = 200
    also: Mapping[int, str] = MappingProxyType({})  # other statuses, and their answers
    problems: tuple[int, ...] = ()  # the statuses of errors that do not follow from method, address and headers


def accepts[M](scope: str = "", *, once: bool = False, **options: Any) -> Callable[[M], M]:
    """Declare what a method of a view accepts and answers; a view without it cannot be routed.

    ``options`` are the fields of ``Accepted``. With ``once``, a repeated ``Idempotency-Key`` gets the first answer.
    """
    if once:
        options["headers"] = (KEY_HEADER,)

    def declare(method: Any) -> Any:
        found = answer_once(method) if once else method
        found.accepted = Accepted(scope, **options)
        return found

    return declare


def for_staff[M](scope: str, *more: str, **options: Any) -> Callable[[M], M]:
    """Declare a method like ``accepts``, for staff who have the permission ``scope``, and ``more`` of them."""
    permission = staff_with(*(f"queue_app.{name}" for name in (*more, scope)))
    return accepts(scope, permission=permission, **options)


class ApiView(APIView):
    """An endpoint for authenticated users; its errors are problem documents."""

    permission_classes: Sequence[type[BasePermission]] = (IsAuthenticated,)
    authentication_classes: Sequence[type[BaseAuthentication]] = (PasswordAuthentication, SessionAuthentication)
    parser_classes = (JSONParser,)
    renderer_classes = (PlainJSON, ProblemJSON)
    content_negotiation_class = Negotiation
    metadata_class = SimpleMetadata
    throttle_classes: Sequence[type[BaseThrottle]] = (ScopedThrottle,)
    #: Name in the OpenAPI document of the token that it takes instead, if users cannot call it.
    security_scheme = ""
    #: Method -> what it accepts.
    accepted: Mapping[str, Accepted] = MappingProxyType({})
    #: Whether the query string of a method without a declared one must be empty.
    refuses_query = True
    #: Whether a request must wait for the right to use the database; requests for health do not.
    uses_database = True
    #: Renderer of HTML pages; ``queue_app.urls`` sets it, because the page imports the schema and so all views.
    page_class: type[BaseRenderer] | None = None
    versioning_class = None
    #: ``queue_app.api.schema`` describes the API in a document of its own; the project's document leaves it out.
    schema: Any = None
    #: Maximum size of a body, as a multiple of the usual one.
    body_factor = 1
    #: JSON object that ``json_body`` read, for the audit log; a stream can be read only once.
    _content: Mapping[str, Any] = MappingProxyType({})
    _place: Place | None = None
    database: Database  # from ``initial`` on

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        methods: Any = ((name.upper(), getattr(cls, name, None)) for name in cls.http_method_names)
        cls.accepted = {name: method.accepted for name, method in methods if hasattr(method, "accepted")}

    @classmethod
    def as_view(cls, **initkwargs: Any) -> Any:
        """Return the view without the transaction of ATOMIC_REQUESTS.

        Each service commits by itself and notifies the index before the view writes its answer.
        """
        methods = {name.upper() for name in cls.http_method_names if hasattr(cls, name)} - {"HEAD", "OPTIONS"}
        if cls.authentication_classes and (missing := sorted(methods - cls.accepted.keys())):
            raise ImproperlyConfigured(f"{cls.__name__} names no scope for {', '.join(missing)}: use @accepts.")
        view = super().as_view(**initkwargs)
        return transaction.non_atomic_requests(using=conf.load()[0].database_alias)(view)

    def get_authenticators(self) -> list[BaseAuthentication]:
        """Add keys, and tokens if their app is installed, first: the first one names the scheme in a 401."""
        if not self.authentication_classes:
            return []
        installed = apps.is_installed("rest_framework.authtoken")
        tokens = [KeyAuthentication(), *([TokenAuthentication()] if installed else [])]
        return [*tokens, *super().get_authenticators()]

    def get_permissions(self) -> list[Any]:
        """Add the permission of the method; OPTIONS, and methods that the view lacks, need that of its first one."""
        first = next(iter(self.accepted.values()), Accepted())
        needed = self.accepted.get(self._method_of(self.request), first).permission
        return [*super().get_permissions(), *([needed()] if needed else [])]

    def get_renderers(self) -> list[Any]:
        """Return JSON, and for a GET that needs authentication also an HTML page."""
        renderers = super().get_renderers()
        if self.page_class is not None and self.request.method == "GET" and self.authentication_classes:
            renderers.append(self.page_class())
        return renderers

    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        """Answer within the trace that the caller names, so that the tasks it submits join that trace."""
        header = request.META.get("HTTP_TRACEPARENT")
        traceparent = trace.parse(header) if header else None
        try:
            with trace.use(traceparent) if traceparent else nullcontext():
                return super().dispatch(request, *args, **kwargs)
        finally:
            if database := getattr(self, "database", None):
                database.leave()
            if self._place is not None:
                self._place.leave()

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        """Refuse an unfit body before the checks of the session can read it."""
        if self.uses_database and not hasattr(self, "database"):
            self.database = Database(request._request)  # noqa: SLF001 - the wrapped request of Django
        self._body = RequestBody(request._request, self.body_factor)  # noqa: SLF001 - the wrapped request of Django
        self._body.check_headers()
        super().initial(request, *args, **kwargs)
        if getattr(request.auth, "scopes", None) and self.authentication_classes:
            accepted = self.accepted.get(self._method_of(request))
            if accepted is not None and accepted.scope != BY_CONTENT:
                check_scope(request, accepted.scope)
        if request.META.get("QUERY_STRING") and self.refuses_query:
            method = self._method_of(request)
            if method in self.allowed_methods and not self.accepted.get(method, Accepted()).query:  # else it is 405
                Query.read(request.query_params)

    def finalize_response(self, request: Request, response: Any, *args: Any, **kwargs: Any) -> Any:
        """Let no cache keep the answer; let the HTML page set its own media type, also for a problem."""
        response = self.answered(request, response)
        is_page = isinstance(getattr(request, "accepted_renderer", None), self.page_class or ())
        if is_page and isinstance(response, Response):
            response.content_type = None
        answer = super().finalize_response(request, response, *args, **kwargs)
        answer.setdefault("Cache-Control", "no-store")  # answers hold payloads, or depend on who asks
        return answer

    def answered(self, request: Request, found: Any) -> Any:
        """Return a response; a method may return only its content, which then has the status that it declares."""
        return Response(found, self._declared(request).status) if isinstance(found, dict) else found

    @contextmanager
    def recording(self, request: Request) -> Iterator[None]:
        """Commit a change and its audit record in one transaction; the index is notified after it."""
        with atomic():
            yield
            self._record(request)

    def _record(self, request: Request) -> None:
        match = request.resolver_match
        name, names = (match.url_name, match.kwargs) if match else (type(self).__name__, {})
        target, _, action = str(name).partition("-")
        audit.record(
            f"{action or target}.{str(request.method).lower()}", target, list(names.values()),
            by=self.username(request), via=audit.API,
            after={"request": self._content} if self._content else {},
            reason=str(self._content.get("reason") or ""),
        )  # fmt: skip

    def get_exception_handler(self) -> Callable[[Exception, dict[str, Any]], Response]:
        return errors.handle

    def read_body(self, request: Request) -> Any:
        """Return what the serializer of the method makes of the JSON object in the body."""
        serializer = shared(self._declared(request).body or Body)
        self._content = self._body.read_object(required=serializer.is_demanded)
        return serializer.run_validation(self._content)

    def content_of(self, request: Request) -> dict[str, Any]:
        """Return the JSON object in the body, before the serializer of the method reads it."""
        return self._body.read_object(required=False)

    def read_query(self, request: Request) -> dict[str, Any]:
        """Return what the serializer of the method makes of the query string."""
        return (self._declared(request).query or Query).read(request.query_params)

    def _declared(self, request: Request) -> Accepted:
        return self.accepted[self._method_of(request)]

    def _method_of(self, request: Request) -> str:
        return "GET" if request.method == "HEAD" else request.method or ""

    def address(self, request: Request, path: str) -> str:
        """Return the absolute address of a path from the root; faster than ``build_absolute_uri``."""
        return str(iri_to_uri(f"{request.scheme}://{request.get_host()}{path}"))

    @contextmanager
    def waiting(self, request: Request, caller: str) -> Iterator[None]:
        """Hold no connection to the database during a block that waits, and a place from the first such block on.

        Raises ``TooManyWaiters`` and ``TooManyOfCaller``, and ``AuthenticationFailed`` if the caller's key was revoked
        meanwhile.
        """
        self._place = self._place or waiter(request._request, caller)  # noqa: SLF001 - the wrapped request of Django
        with self.database.idle():
            yield
        if isinstance(request.auth, ApiKey) and not is_in_force(request.auth, KEY_SECONDS):
            raise exceptions.AuthenticationFailed

    def username(self, request: Request) -> str:
        """Return the name that the caller's tasks are stored under."""
        name: str = request.user.get_username()
        return name


class PublicView(ApiView):
    """An endpoint that anyone may call; it does not use the database on its own thread."""

    refuses_query = False  # a probe may send one

    uses_database = False
    authentication_classes = ()
    permission_classes = (AllowAny,)


class NotFoundView(ApiView):
    """Answer unknown addresses of the API with a problem document instead of an HTML page."""

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> NoReturn:
        raise exceptions.NotFound


def parse_number(text: str, missing: Exception) -> int:
    """Return the number in an address; raise ``missing`` if the text is none."""
    if not (text.isascii() and text.isdigit() and len(text) <= ID_DIGITS):
        raise missing
    return int(text)


def parse_id(text: str, missing: Exception) -> UUID:
    """Return the UUID in an address; raise ``missing`` if the text is none."""
    try:
        return uuid_of(text, "id")
    except InvalidTaskData:
        raise missing from None


def route(path: str, view: type[ApiView], name: str) -> URLPattern:
    """Return the pattern of an address, in which ``<name>`` is an argument of the view."""
    pattern = path.replace("<", "(?P<").replace(">", ">[^/]+)")
    found: URLPattern = re_path(rf"^{pattern}/?\Z", view.as_view(), name=name)
    return found
