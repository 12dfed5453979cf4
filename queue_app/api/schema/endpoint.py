"""The description of one endpoint, in addition to the docstrings of its view."""

import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from drf_spectacular.utils import OpenApiParameter

from queue_app.api.idempotency import KEY_HEADER
from queue_app.api.schema.components import BANDS, TEXT
from queue_app.api.serializers.base import Query, Schema, properties
from queue_app.api.serializers.kinds import NAME, UUID
from queue_app.core.options import KEY_LENGTH

#: Module of a view -> tag of its endpoints; other modules have the name of the tag.
_TAGS: Final = {"dead_letters": "dead letters", "health": "operations", "views": "remote workers"}
_NUMBER: Final = {"type": "integer", "minimum": 1}
#: Part of an address -> its schema; other parts are UUIDs.
_PATH: Final[dict[str, Schema]] = {"name": NAME, "band": BANDS, "limit_id": _NUMBER, "schedule_id": _NUMBER}


def header(name: str, description: str, *, required: bool = False) -> OpenApiParameter:
    """Return a header."""
    return OpenApiParameter(name, TEXT, "header", required=required, description=description)


_KEY: Final[Schema] = {"type": "string", "minLength": 1, "maxLength": KEY_LENGTH, "pattern": "[^ ]"}
#: For the endpoints that store tasks, and for those whose repetition gets the first answer.
KEY: Final = OpenApiParameter(
    KEY_HEADER, _KEY, "header", description="A repeated request with the same key makes nothing new."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointSchema:
    """One method of a view; its docstring is the summary (first line) and the description (the rest)."""

    id: str
    answer: Schema
    status: int = 200
    also: tuple[int, Schema] | None = None  # another status, and its answer
    parameters: tuple[OpenApiParameter, ...] = ()
    problems: tuple[int, ...] = ()  # in addition to the ones that follow from method and address
    media_type: str = "application/json"
    other_media_type: str = ""  # for the same answer in another format
    tag: str | None = None

    def tag_of(self, view: type[Any]) -> str:
        """Return the group of the endpoint in the document."""
        module = view.__module__.rpartition(".")[2]
        return self.tag or _TAGS.get(module, module)

    def parameters_of(self, view: type[Any], method: str) -> list[OpenApiParameter]:
        """Return the parts of the address, which are arguments of the view's method, and the other parameters."""
        _self, _request, *parts = inspect.signature(getattr(view, method.lower())).parameters
        return [
            *(OpenApiParameter(part, _PATH.get(part, UUID), "path", required=True) for part in parts),
            *_of_query(view.accepted[method].query if method in view.accepted else None),
            *self.parameters,
            *([KEY] if method in view.accepted and view.accepted[method].once else []),
        ]

    def problems_of(self, view: type[Any], method: str) -> list[int]:
        """Return the statuses of errors: of all endpoints, of addresses with parts, and of methods with a body."""
        in_path = any(parameter.location == "path" for parameter in self.parameters_of(view, method))
        of_path, of_body = (404,) if in_path else (), () if method == "GET" else (413, 415)
        of_key = (409,) if method in view.accepted and view.accepted[method].once else ()
        return [400, 401, 403, 406, 429, 503, *of_path, *of_body, *of_key, *self.problems]


def _of_query(query: type[Query] | None) -> Iterator[OpenApiParameter]:
    """Yield the parameters that a serializer of a query string reads."""
    for name, found in properties(query, in_body=False).items() if query else ():
        schema = dict(found)
        text, is_former = schema.pop("description", ""), schema.pop("deprecated", False)
        yield OpenApiParameter(name, schema, description=text, deprecated=is_former)
