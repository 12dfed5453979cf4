"""Every error as an RFC 9457 problem document; one table gives each its HTTP status.

``code`` is stable and safe to match on; ``detail`` is for people. Errors of the database and the framework get fixed
details, which reveal nothing about the inside of the server.
"""

import json
import logging
import math
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any, Final, NamedTuple

from django.core import exceptions as django
from django.core.signals import got_request_exception
from django.db import DatabaseError, DataError, InterfaceError, OperationalError
from django.http import Http404, HttpRequest, HttpResponse, UnreadablePostError
from django.http.multipartparser import MultiPartParserError
from django.urls import resolve
from django.views import defaults
from rest_framework import exceptions as drf
from rest_framework.response import Response
from rest_framework.views import set_rollback

from queue_app import exceptions as own
from queue_app.api import waiting
from queue_app.services.control.limits import InvalidLimits

CONTENT_TYPE: Final = "application/problem+json"
TITLES: Final = {413: "Content Too Large", 422: "Unprocessable Content"}  # older versions of Python have another name
RETRY_AFTER_SECONDS: Final = 2
TEXT_LIMIT: Final = 500
MAX_ERRORS: Final = 20  # errors of a list, or unknown names, in one answer
logger = logging.getLogger("django.request")


class InvalidInput(own.TaskQueueError, code="invalid"):
    """One or more fields of a request are invalid."""

    def __init__(self, errors: Sequence[own.InvalidTaskData]) -> None:
        count = f"{MAX_ERRORS} or more" if len(errors) >= MAX_ERRORS else str(len(errors))
        super().__init__(f"The request has {count} invalid field{'' if len(errors) == 1 else 's'}; see errors.")
        self.errors = errors


class NoSuchQueue(own.TaskQueueError, code="unknown_queue"):
    """The queue named in the address does not exist."""


class PreconditionRequired(own.TaskQueueError, code="precondition_required"):
    """An edit does not name the version that it is based on."""


class AsgiRequired(own.TaskQueueError, code="asgi_required"):
    """This needs an ASGI server."""


class NotInstalled(own.TaskQueueError, code="not_installed"):
    """A part of the API needs a package that is not installed."""


class BodyTooSlow(own.TaskQueueError, code="body_too_slow"):
    """The body did not arrive within ``API.BODY_SECONDS``."""


class ErrorAnswer(NamedTuple):
    """The answer to an error; by default with the error's ``code`` and ``detail``."""

    error: type[Exception]
    status: int
    code: str | None = None
    detail: str | None = None


#: Status -> the errors that have it, with a code and a detail of their own.
_OF_OWN: Final[dict[int, tuple[type[Exception], ...]]] = {
    400: (InvalidInput, own.InvalidTaskData),
    401: (own.TokenRefused,),
    403: (own.Veto, own.OutOfScope),
    404: (own.WorkerNotFound, NoSuchQueue),
    408: (BodyTooSlow,),
    409: (
        own.IdempotencyConflict, own.UniqueConflict, own.WorkerLost, own.WorkerNameTaken, own.StaleLease,
        own.InvalidTransition, own.OperationEnded, own.Undecryptable, own.AttemptOver, own.ResultMissing,
    ),
    412: (own.ChangedMeanwhile,),
    422: (own.WrongArguments,),
    428: (PreconditionRequired,),
    429: (own.QueueFull, own.UserLimitExceeded, waiting.TooManyOfCaller),
    501: (AsgiRequired, NotInstalled),
    503: (waiting.TooManyWaiters, waiting.TooBusy, own.EncryptionUnavailable),
}  # fmt: skip
_MISSING: Final = {
    own.TaskNotFound: "is no such task", own.DeadLetterNotFound: "is no such dead letter",
    own.LimitNotFound: "are no such limits", own.ScheduleNotFound: "is no such schedule",
    own.OperationNotFound: "is no such operation", own.WorkflowNotFound: "is no such workflow",
}  # fmt: skip
_MALFORMED: Final = (drf.APIException, django.SuspiciousOperation, django.BadRequest, MultiPartParserError)
#: The rule for the class of an error applies, or the one for its nearest base.
RULES: Final = (
    *(ErrorAnswer(error, status) for status, errors in _OF_OWN.items() for error in errors),
    *(ErrorAnswer(error, 404, None, f"There {text}.") for error, text in _MISSING.items()),
    *(ErrorAnswer(error, 400, "bad_request", "The request is malformed.") for error in _MALFORMED),
    *(
        ErrorAnswer(error, 503, "database_unavailable", "The database is unavailable; try again later.")
        for error in (OperationalError, InterfaceError)
    ),
    *(ErrorAnswer(error, 404, "not_found", "There is nothing at this address.") for error in (drf.NotFound, Http404)),
    ErrorAnswer(own.IndexUnavailable, 503, None, "The index is unavailable; try again later."),
    ErrorAnswer(own.IndexNotReady, 503, None, "The index is being rebuilt; try again later."),
    ErrorAnswer(
        drf.NotAuthenticated, 401, "not_authenticated", "Authenticate with a key, a token, a password or a session."
    ),
    ErrorAnswer(drf.AuthenticationFailed, 401, "authentication_failed", "These credentials are not valid."),
    ErrorAnswer(drf.PermissionDenied, 403, "permission_denied"),
    ErrorAnswer(django.PermissionDenied, 403, "permission_denied", "You may not do this."),
    ErrorAnswer(
        drf.MethodNotAllowed, 405, "method_not_allowed", "This address does not support the method; see Allow."
    ),
    ErrorAnswer(drf.NotAcceptable, 406, "not_acceptable", "Answers are JSON; accept application/json."),
    ErrorAnswer(drf.UnsupportedMediaType, 415, "unsupported_media_type", "Send plain JSON as application/json."),
    ErrorAnswer(drf.Throttled, 429, "throttled", "Too many requests; try again later."),
    ErrorAnswer(django.RequestDataTooBig, 413, "payload_too_large", "The request is too large."),
    ErrorAnswer(UnreadablePostError, 400, "body_incomplete", "The connection ended before the body did."),
    ErrorAnswer(DataError, 400, "invalid_value", "The request holds a value that cannot be stored."),
)
_RULE_OF: Final = {rule.error: rule for rule in RULES}
UNEXPECTED: Final = ErrorAnswer(Exception, 500, "internal_error", "The server failed; the error has been logged.")
#: Codes with a status of their own, which takes precedence over the rule for the error's class.
STATUS_OF_CODE: Final = {"payload_too_large": 413}
DISK_FULL: Final = "53100"


def handle(error: Exception, context: dict[str, Any]) -> Response:
    """Return the problem document of any exception; report one that no rule expects."""
    rule = next((_RULE_OF[kind] for kind in type(error).__mro__ if kind in _RULE_OF), UNEXPECTED)
    if rule is UNEXPECTED:
        _report(error, context["request"]._request)  # noqa: SLF001 - the wrapped request of Django
    code = rule.code or str(getattr(error, "code", "bad_request"))
    entries = [_entry(item) for item in causes(error)]
    codes = {entry["code"] for entry in entries}
    if len(codes) == 1:
        code = codes.pop()
    if isinstance(error, DatabaseError) and getattr(error.__cause__, "sqlstate", None) == DISK_FULL:
        code = "storage_full"
    status = STATUS_OF_CODE.get(code, rule.status)
    detail: str = rule.detail or (entries[0]["message"] if len(entries) == 1 else printable(str(error)))
    title = TITLES.get(status) or HTTPStatus(status).phrase
    problem: dict[str, Any] = {"title": title, "status": status, "code": code, "detail": detail}
    if entries:
        problem["errors"] = entries
    if isinstance(error, own.InvalidTransition | own.StaleLease) and error.status is not None:
        problem["task_status"] = error.status  # "status" is the HTTP status here
    if isinstance(error, own.UniqueConflict) and error.task_id is not None:
        problem |= {"task_id": str(error.task_id), "task_status": error.status}
    if isinstance(error, own.LimitExceeded):
        problem |= {"queue": error.queue or None, "limit": error.limit, "current": error.current}
    set_rollback()
    return Response(problem, status=status, headers=_headers(error, status), content_type=CONTENT_TYPE)


def bad_request(request: HttpRequest, exception: Exception) -> HttpResponse:
    """Answer what Django refuses before a view is found, such as a wrong Host; for ``handler400`` of a project."""
    try:
        is_api = resolve(request.path_info).app_name == "queue_app"
    except Http404:
        is_api = False
    if not is_api:
        return defaults.bad_request(request, exception)
    problem = {"title": "Bad Request", "status": 400, "code": "bad_request", "detail": "The request is malformed."}
    return HttpResponse(json.dumps(problem), status=HTTPStatus.BAD_REQUEST, content_type=CONTENT_TYPE)


def printable(text: str, limit: int = TEXT_LIMIT) -> str:
    """Return ``text`` cut to ``limit``, with unprintable characters as escapes."""
    cut = text if len(text) <= limit else f"{text[: limit - 1]}…"
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in cut)


def causes(error: Exception) -> Sequence[own.InvalidTaskData]:
    """Return the errors of single fields that an error consists of."""
    if isinstance(error, InvalidInput | InvalidLimits):
        return error.errors
    return [error] if isinstance(error, own.InvalidTaskData) else []


def _entry(error: own.InvalidTaskData) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "field": printable(error.field, 100),
        "code": error.code,
        "message": printable(error.message),
    }
    if error.limit is not None:
        entry["limit"] = error.limit
    if isinstance(error, own.UnknownTaskType | own.UnknownQueue):
        entry["near_matches"] = error.near_matches
    if isinstance(error, own.WrongArguments):
        entry["signature"] = error.signature
    return entry


def _headers(error: Exception, status: int) -> dict[str, str]:
    headers: dict[str, str] = {}
    if authenticate := getattr(error, "auth_header", None):
        headers["WWW-Authenticate"] = authenticate
    wait = getattr(error, "retry_after" if isinstance(error, own.LimitExceeded) else "wait", None)
    if wait is not None or status == HTTPStatus.SERVICE_UNAVAILABLE:
        headers["Retry-After"] = str(math.ceil(wait or RETRY_AFTER_SECONDS))
    return headers


def _report(error: Exception, request: HttpRequest) -> None:
    """Notify Django's listeners and write the log, as if the error had left the view."""
    got_request_exception.send(sender=handle, request=request)
    logger.error("Internal Server Error: %s", printable(request.path), exc_info=error)
