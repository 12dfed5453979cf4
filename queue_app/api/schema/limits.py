"""The endpoints about limits of task types and keys, and about pauses of them and of everything."""

from __future__ import annotations

from typing import Any, Final

from queue_app.api.limits import EVERYTHING
from queue_app.api.schema.components import COUNT, FLAG, TEXT, TIME, Schema, listed, maybe, record
from queue_app.api.schema.endpoint import Endpoint, within
from queue_app.api.views import limits
from queue_app.models.limit import Scope
from queue_app.models.limit_columns import MAX_CAP, MAX_RATE_SECONDS

_SCOPE: Final[Schema] = {"type": "string", "enum": list(map(str, Scope))}
_ANY_SCOPE: Final[Schema] = {"type": "string", "enum": [EVERYTHING, *map(str, Scope)]}
_NAME: Final[Schema] = {"type": "string", "minLength": 1, "maxLength": 255}
_ID: Final[Schema] = {"type": "integer", "minimum": 1}
_CAP: Final = maybe({"type": "integer", "minimum": 1, "maximum": MAX_CAP})
_SECONDS: Final = maybe({"type": "number", "minimum": 0.001, "maximum": MAX_RATE_SECONDS})
_PACE: Final = {
    "max_concurrent": _CAP,
    "rate_count": _CAP,
    "rate_seconds": _SECONDS,
    "rate_burst": _CAP,
    "min_delay_seconds": _SECONDS,
    "throttled_until": maybe(TIME),
}
_PAUSED: Final = {
    "paused": FLAG,
    "paused_at": maybe(TIME),
    "paused_by": TEXT,
    "paused_reason": TEXT,
    "resume_at": maybe(TIME),
}
_LIMIT: Final = record({"id": COUNT, "scope": _SCOPE, "name": TEXT, **_PACE, **_PAUSED})
_PAUSE: Final = record({"scope": _ANY_SCOPE, "name": maybe(TEXT), **_PAUSED})
_WHAT: Final = {"scope": _ANY_SCOPE, "name": _NAME}
_WHY: Final = {"reason": {"type": "string", "maxLength": 200}, "resume_at": TIME}

LIMITS: Final[dict[tuple[Any, str], Endpoint]] = {
    (limits.LimitListView, "GET"): Endpoint(
        id="list_limits", summary="List limits of task types and keys", tag="limits", problems=(403,),
        responses={200: record({"results": listed(_LIMIT)})},
    ),
    (limits.LimitListView, "POST"): Endpoint(
        id="add_limit", summary="Limit a task type or a key", tag="limits", problems=(403, 413, 415),
        responses={201: _LIMIT}, request=record({"scope": _SCOPE, "name": _NAME, **_PACE}, optional=tuple(_PACE)),
        example={"scope": "key", "name": "customer", "max_concurrent": 2},
    ),
    (limits.LimitView, "GET"): Endpoint(
        id="get_limit", summary="Inspect limits", tag="limits", problems=(403, 404), responses={200: _LIMIT},
        parameters=(within("limit_id", _ID),),
    ),
    (limits.LimitView, "PATCH"): Endpoint(
        id="edit_limit", summary="Change limits", tag="limits", problems=(403, 404, 413, 415), responses={200: _LIMIT},
        parameters=(within("limit_id", _ID),), request=record(_PACE, optional=tuple(_PACE)),
        example={"rate_count": 100, "rate_seconds": 60},
    ),
    (limits.LimitView, "DELETE"): Endpoint(
        id="lift_limit", summary="Lift limits", tag="limits", problems=(403, 404, 413, 415),
        responses={200: record({"id": COUNT, "deleted": FLAG})}, parameters=(within("limit_id", _ID),),
    ),
    (limits.PauseOfView, "POST"): Endpoint(
        id="pause", summary="Pause a task type, a key, or everything", tag="limits", problems=(403, 413, 415),
        responses={200: _PAUSE}, request=record(_WHAT | _WHY, optional=("name", *_WHY)),
        example={"scope": "type", "name": "shop.tasks.send_receipt", "reason": "the mail server is away"},
    ),
    (limits.ResumeOfView, "POST"): Endpoint(
        id="resume", summary="Resume a task type, a key, or everything", tag="limits", problems=(403, 404, 413, 415),
        responses={200: _PAUSE}, request=record(_WHAT, optional=("name",)),
        example={"scope": "type", "name": "shop.tasks.send_receipt"},
    ),
}  # fmt: skip
