"""What an endpoint takes and answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from queue_app.api.schema.components import TEXT, UUID, Schema

Place = Literal["query", "path", "header"]
Parameter = tuple[str, Schema, Place, bool, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """One method of one address."""

    id: str
    summary: str
    tag: str
    responses: dict[int, Any]
    parameters: tuple[Parameter, ...] = ()
    request: Schema | None = None
    example: Any = None
    problems: tuple[int, ...] = ()  # beside those that all have
    media_type: str | None = "application/json"


def query(name: str, schema: Schema, text: str) -> Parameter:
    """Return a parameter of the query string."""
    return name, schema, "query", False, text


def header(name: str, text: str, schema: Schema = TEXT, *, required: bool = False) -> Parameter:
    """Return a header."""
    return name, schema, "header", required, text


def within(name: str, schema: Schema = UUID) -> Parameter:
    """Return a part of the address."""
    return name, schema, "path", True, ""
