"""Whether this process is alive and ready; public, and without further details."""

from http import HTTPStatus
from typing import Any, Final

from rest_framework.request import Request
from rest_framework.response import Response

from queue_app.api.base import PublicView, accepts
from queue_app.diagnose import health
from queue_app.diagnose.system import way_name
from queue_app.services.way import is_detour
from queue_app.sql.snapshot import Way

WITHIN_SECONDS: Final = 2.0
ALIVE: Final = {"status": "ok"}


def _way(way: Way) -> dict[str, Any]:
    """Return where claims find tasks; why in detail is not public."""
    return {"way": way_name(way), "since": way.since, "redis_is_away": is_detour(way)}


class LiveView(PublicView):
    """Whether the process answers at all."""

    @accepts(id="live", answer="Acknowledgement")
    def get(self, request: Request) -> dict[str, Any]:
        """Report liveness."""
        return ALIVE


class ReadyView(PublicView):
    """Whether the process can accept tasks, and whether tasks are started."""

    @accepts(id="ready", answer="Readiness", also={503: "Readiness"})
    def get(self, request: Request) -> Response:
        """Report readiness.

        The status is 200 while the database answers: tasks are accepted without the other parts, so their failures are
        only listed. ``index_way`` is where claims find tasks: in Redis, or in the rows. With
        ``?require=index,scheduler`` these parts must work too, for a monitor or for the probe of another process.
        """
        required = {health.DATABASE, *request.query_params.get("require", "").split(",")}
        found = health.check(WITHIN_SECONDS)
        wrong = required & found.reasons.keys()
        return Response(
            {
                "status": "not ok" if wrong else "ok",
                **{part: found.status(part) for part in health.PARTS},
                "index_way": found.way and _way(found.way),
                "reasons": list(dict.fromkeys(found.reasons.values())),
            },
            status=HTTPStatus.SERVICE_UNAVAILABLE if wrong else HTTPStatus.OK,
            headers={"Cache-Control": "no-store"},
        )
