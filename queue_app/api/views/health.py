"""Whether this process lives, and whether it can do its work; nothing else is told, and to anyone."""

from __future__ import annotations

from http import HTTPStatus
from typing import Final

from rest_framework.permissions import AllowAny
from rest_framework.request import Request
from rest_framework.response import Response

from queue_app.api.base import ApiView
from queue_app.services.read import health

WITHIN_SECONDS: Final = 2.0


class _PublicView(ApiView):
    authentication_classes = ()
    permission_classes = (AllowAny,)


class LiveView(_PublicView):
    """Whether the process answers at all."""

    def get(self, request: Request) -> Response:
        """Say ok."""
        return Response({"status": "ok"})


class ReadyView(_PublicView):
    """Whether the process can take tasks, and whether they are started."""

    def get(self, request: Request) -> Response:
        """Say 200 while the database answers: tasks are accepted without the rest, so its absence is only told.

        With ``?require=index,scheduler`` these have to be well too: for a monitor, or a probe of another process.
        """
        required = {health.DATABASE, *request.query_params.get("require", "").split(",")}
        found = health.check(WITHIN_SECONDS)
        wrong = required & found.reasons.keys()
        return Response(
            {
                "status": "not ok" if wrong else "ok",
                **{part: found.status(part) for part in health.PARTS},
                "reasons": list(found.reasons.values()),
            },
            status=HTTPStatus.SERVICE_UNAVAILABLE if wrong else HTTPStatus.OK,
            headers={"Cache-Control": "no-store"},
        )
