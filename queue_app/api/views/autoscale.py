"""How many workers a queue could use, for autoscalers."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Final

from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.settings import api_settings

from queue_app.api.base import ApiView
from queue_app.api.errors import NoSuchQueue
from queue_app.api.fields import Reader
from queue_app.api.views.queues import get_queue
from queue_app.exceptions import InvalidTaskData, UnknownQueue
from queue_app.models import Queue
from queue_app.services.enqueue.validate import check_queue_name
from queue_app.services.read.autoscale import TARGET_SECONDS, autoscale

MAX_SLOTS: Final = 1000
MAX_SECONDS: Final = 86_400


class AutoscaleView(ApiView):
    """The demand of one queue."""

    def get(self, request: Request, name: str) -> Response:
        """Return what waits and could run, and how many workers with `slots` slots would finish it in `seconds`."""
        values = {key: request.query_params[key] for key in request.query_params}
        values.pop(str(api_settings.URL_FORMAT_OVERRIDE), None)
        reader = Reader(values)
        reader.refuse_others(("slots", "seconds"), code="unknown_parameter")
        slots = reader.optional("slots", lambda value, field: _whole(value, field, MAX_SLOTS))
        seconds = reader.optional("seconds", lambda value, field: _whole(value, field, MAX_SECONDS))
        reader.finish()
        found = autoscale(_queue(name), slots=slots, seconds=seconds or TARGET_SECONDS)
        return Response({"queue": name, **asdict(found)})


def _queue(name: str) -> Queue:
    try:
        return get_queue(check_queue_name(name))
    except (InvalidTaskData, UnknownQueue) as error:
        raise NoSuchQueue("There is no such queue.") from error


def _whole(value: Any, name: str, most: int) -> int:
    """Accept a whole number from 1 on, as digits."""
    if not (isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 10 and int(value)):  # noqa: PLR2004
        raise InvalidTaskData(name, f"{name} must be a whole number above 0.", code="integer_expected")
    if int(value) > most:
        raise InvalidTaskData(name, f"{name} is {value}; the limit is {most}.", limit=most)
    return int(value)
