"""The page for the time in which PostgreSQL does not answer: 503 with a sentence, and it tries again by itself."""

import logging
import sys
from collections.abc import Callable
from functools import wraps
from typing import Any, Final

from django.db import InterfaceError, OperationalError
from django.http import HttpRequest, HttpResponse
from django.template.loader import render_to_string
from django.template.response import TemplateResponse
from django.views.defaults import server_error

from queue_app.exceptions import in_one_line
from queue_app.index import patience
from queue_app.services.way import follow
from queue_app.sql.database import require_answer

#: Seconds until the page tries again.
RETRY_SECONDS: Final = 5
#: Seconds for which a page waits for a first answer of PostgreSQL.
ANSWER_SECONDS: Final = 1.5

logger = logging.getLogger("taskqueue")


def answers_without_database(view: Callable[..., HttpResponse]) -> Callable[..., HttpResponse]:
    """Return a view that answers 503 instead of a server error while PostgreSQL does not answer.

    While Redis does not answer, the view goes on without it.
    """

    @wraps(view)
    def answer(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        try:
            require_answer(ANSWER_SECONDS)
            follow()
            with patience():
                response = view(request, *args, **kwargs)
                return response.render() if isinstance(response, TemplateResponse) else response
        except (OperationalError, InterfaceError) as error:
            return unavailable(error)

    return answer


def unavailable(error: Exception) -> HttpResponse:
    """Return the page."""
    logger.warning("The admin cannot read PostgreSQL: %s", in_one_line(error))
    text = render_to_string("admin/queue_app/away.html", {"seconds": RETRY_SECONDS})
    headers = {"Retry-After": str(RETRY_SECONDS), "Cache-Control": "no-store"}
    return HttpResponse(text, status=503, headers=headers)


def handler500(request: HttpRequest) -> HttpResponse:
    """Answer any page of a project with 503 while PostgreSQL does not answer; name this in the project's URLconf."""
    error = sys.exc_info()[1]
    return unavailable(error) if isinstance(error, OperationalError | InterfaceError) else server_error(request)
