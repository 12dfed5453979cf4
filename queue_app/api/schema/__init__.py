"""The OpenAPI document of the API, made by drf-spectacular from one table; imported when it is asked for.

The package is optional. So the views know nothing of it: ``apply`` tells it about them, once.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Final

from drf_spectacular.openapi import AutoSchema
from drf_spectacular.plumbing import build_mock_request  # noqa: F401 - the generator's own, for the commands
from drf_spectacular.utils import OpenApiExample, OpenApiParameter, extend_schema

from queue_app.api.base import ApiView, NotFoundView
from queue_app.api.internal.views import WorkerView
from queue_app.api.schema.components import COMPONENTS, PROBLEM, ref
from queue_app.api.schema.endpoint import Endpoint
from queue_app.api.schema.limits import LIMITS
from queue_app.api.schema.operations import OPERATIONS as OF_USERS
from queue_app.api.schema.workers import WORKERS
from queue_app.api.views.metrics import MetricsView

OPERATIONS: Final = OF_USERS | LIMITS | WORKERS

#: For ``manage.py spectacular --custom-settings queue_app.api.schema.SETTINGS``.
SETTINGS: Final[dict[str, Any]] = {
    "TITLE": "Task queue",
    "DESCRIPTION": "Submit, watch and steer tasks. Errors are problem documents (RFC 9457) with stable codes.",
    "VERSION": "1",
    "OAS_VERSION": "3.1.0",
    "SCHEMA_PATH_PREFIX": "/api/v1",
    "APPEND_COMPONENTS": {
        "schemas": COMPONENTS,
        "securitySchemes": {
            "apiKey": {"type": "http", "scheme": "bearer", "description": "An API key, tq_…"},
            "password": {"type": "http", "scheme": "basic"},
            "workerToken": {"type": "http", "scheme": "bearer", "description": "A token of remote workers, tqw_…"},
        },
    },
    "PREPROCESSING_HOOKS": ["queue_app.api.schema.own_endpoints"],
    "POSTPROCESSING_HOOKS": [],
    "DISABLE_ERRORS_AND_WARNINGS": False,
}
_COMMON: Final = (400, 401, 406, 429, 503)


class Schema(AutoSchema):
    """What the table says, and the ways to say who one is."""

    def get_auth(self) -> list[dict[str, list[str]]]:
        """Return the ways to authenticate."""
        if isinstance(self.view, WorkerView):
            return [{"workerToken": []}]
        return [{"apiKey": []}, {"password": []}] if self.view.authentication_classes else [{}]

    def _get_format_parameters(self) -> list[Any]:
        """Tell of no ``format``: there is one, but where the table has it."""
        return []


def own_endpoints(endpoints: list[Any], **_: Any) -> list[Any]:
    """Leave out what is no part of the document: the catch-all, the metrics, pages of the project."""
    return [
        found
        for found in endpoints
        if issubclass(found[3].cls, ApiView) and not issubclass(found[3].cls, NotFoundView | MetricsView)
        and (found[3].cls, found[2]) in OPERATIONS
    ]  # fmt: skip


@cache
def apply() -> None:
    """Describe every endpoint to drf-spectacular; once is enough."""
    ApiView.schema = Schema()
    for (view, method), operation in OPERATIONS.items():
        name = method.lower()
        # A method that several views inherit gets a description in each.
        plain = getattr(view, name)
        setattr(view, name, extend_schema(**_options(operation))(_copy(plain)))


def _copy(method: Any) -> Any:
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        return method(self, *args, **kwargs)

    call.__name__, call.__doc__ = method.__name__, method.__doc__
    return call


def _options(operation: Endpoint) -> dict[str, Any]:
    responses: dict[Any, Any] = {}
    for status, schema in operation.responses.items():
        responses[(status, operation.media_type) if operation.media_type else status] = schema
    for status in (*_COMMON, *operation.problems):
        responses[status, "application/problem+json"] = ref(PROBLEM)
    parameters = [
        OpenApiParameter(name, schema, location, required=location == "path" or required, description=text, many=False)
        for name, schema, location, required, text in operation.parameters
    ]
    examples = []
    if operation.example is not None:
        examples.append(OpenApiExample("Example", value=operation.example, request_only=True))
    return {
        "operation_id": operation.id,
        "summary": operation.summary,
        "tags": [operation.tag],
        "parameters": parameters,
        "request": {"application/json": operation.request} if operation.request else None,
        "responses": responses,
        "examples": examples,
    }


apply()
