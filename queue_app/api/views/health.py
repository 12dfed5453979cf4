"""Whether this process lives, and whether it can do its work; nothing else is told, and to anyone."""

from __future__ import annotations

from http import HTTPStatus
from typing import Final

from rest_framework.permissions import AllowAny
from rest_framework.request import Request
from rest_framework.response import Response

from queue_app.api.base import ApiView
from queue_app.services import health

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
    """Whether the process can take tasks."""

    def get(self, request: Request) -> Response:
        """Say ok while the database answers: tasks are accepted without the index, so its absence is only told."""
        database = health.database.answers(WITHIN_SECONDS)
        index = health.index.answers(WITHIN_SECONDS)
        status = HTTPStatus.OK if database else HTTPStatus.SERVICE_UNAVAILABLE
        return Response(
            {"status": _word(database), "database": _word(database), "index": _word(index)},
            status=status,
            headers={"Cache-Control": "no-store"},
        )


def _word(fine: object) -> str:
    return "ok" if fine else "not ok"
