"""The OpenAPI document, and a page to read it."""

import json
from collections.abc import Iterator, Mapping
from functools import cache
from http import HTTPStatus
from importlib import import_module
from threading import Lock
from typing import Any, Final

from django.conf import settings
from django.http import HttpResponse
from django.template.loader import render_to_string
from rest_framework.exceptions import Throttled
from rest_framework.request import Request

from queue_app.api.base import AnyFormat, PlainJSON, PublicView
from queue_app.api.errors import NotInstalled
from queue_app.api.examples import examples
from queue_app.api.throttles import schemas

#: Requests for the document from one address in a minute and process.
SCHEMAS_PER_MINUTE: Final = 120
_METHODS: Final = ("get", "post", "put", "patch", "delete")
_MAX_CHOICES: Final = 12


class SchemaView(PublicView):
    """The OpenAPI document; it reveals nothing that the source code does not."""

    content_negotiation_class = AnyFormat

    def get(self, request: Request) -> HttpResponse:
        """Return the OpenAPI document as JSON."""
        caller = request.META.get("REMOTE_ADDR") or ""
        wait = schemas.wait(caller, limit=SCHEMAS_PER_MINUTE)
        if wait is not None:
            raise Throttled(wait)
        schemas.add(caller)
        return HttpResponse(_encoded(), content_type="application/vnd.oai.openapi+json")


class DocsView(PublicView):
    """A page to read the document, without scripts."""

    content_negotiation_class = AnyFormat

    def get(self, request: Request) -> Any:
        """Return the API reference as a page."""
        found = document()
        context = {
            "info": found["info"],
            "sections": sections(found, request.build_absolute_uri("/").rstrip("/")),
            "schema": request.path.rstrip("/").removesuffix("/docs") + "/schema",
        }
        return HttpResponse(render_to_string("queue_app/api_docs.html", context))


_lock: Final = Lock()


@cache
def _made(_urls: str) -> bytes:
    try:
        schema = import_module("queue_app.api.schema")
    except ImportError as error:
        raise NotInstalled("Install the extra api-docs: drf-spectacular generates the document.") from error
    return PlainJSON().render(schema.served_document())


def _encoded() -> bytes:
    """Return the document for the URL configuration; it takes a second to make, so it is made once."""
    with _lock:
        return _made(settings.ROOT_URLCONF)


def document() -> dict[str, Any]:
    """Return the OpenAPI document; raise ``NotInstalled``."""
    found: dict[str, Any] = json.loads(_encoded())
    return found


def sections(document: Mapping[str, Any], host: str) -> list[tuple[str, list[dict[str, Any]]]]:
    """Return (tag, operations) of a document; ``host`` begins the addresses in the examples."""
    found: dict[str, list[dict[str, Any]]] = {}
    for path, methods in document["paths"].items():
        for method in _METHODS:
            if method in methods:
                operation = methods[method]
                found.setdefault(operation["tags"][0], []).append(_operation(document, host, path, method, operation))
    return sorted(found.items())


def _operation(
    document: Mapping[str, Any], host: str, path: str, method: str, operation: Mapping[str, Any]
) -> dict[str, Any]:
    media = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
    example = next((each["value"] for each in media.get("examples", {}).values()), None)
    return {
        "id": operation["operationId"],
        "method": method.upper(),
        "path": path,
        "summary": operation.get("summary", ""),
        "about": operation.get("description", "").replace("`", ""),
        "parameters": [
            (each["name"], each["in"], type_words(each.get("schema", {})), each.get("required", False),
             each.get("description", ""))
            for each in operation.get("parameters", ())
        ],
        "fields": list(_fields(document, media.get("schema", {}))),
        "answers": [(status, HTTPStatus(int(status)).phrase) for status in sorted(operation["responses"])],
        "answer": next(
            (list(_fields(document, each.get("schema", {})))
             for status, answer in operation["responses"].items() if status.startswith("2")
             for each in answer.get("content", {}).values()),
            [],
        ),
        "examples": examples(method.upper(), host + path, example),
    }  # fmt: skip


def _fields(document: Mapping[str, Any], schema: Mapping[str, Any]) -> Iterator[tuple[str, str, bool, str]]:
    """Yield (name, type, required, description) of the properties of an object."""
    found = _resolved(document, schema)
    for name, each in found.get("properties", {}).items():
        yield name, type_words(each), name in found.get("required", ()), each.get("description", "")


def _resolved(document: Mapping[str, Any], schema: Mapping[str, Any]) -> Mapping[str, Any]:
    name = schema.get("$ref", "").rpartition("/")[2]
    return document["components"]["schemas"].get(name, schema) if name else schema


def type_words(schema: Mapping[str, Any]) -> str:
    """Return a schema's type in words, such as ``list of text`` or ``high, low or null``."""
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    if choices := schema.get("anyOf") or schema.get("oneOf"):
        return " or ".join(dict.fromkeys(map(type_words, choices)))
    if "const" in schema or "enum" in schema:
        names = [str(each) for each in schema.get("enum", [schema.get("const")])]
        return ", ".join(names[:_MAX_CHOICES]) + ("…" if len(names) > _MAX_CHOICES else "")
    kind = schema.get("type", "anything")
    if isinstance(kind, list):
        return " or ".join(type_words({**schema, "type": each}) for each in kind)
    return f"list of {type_words(schema.get('items', {}))}" if kind == "array" else _value_words(kind, schema)


def _value_words(kind: str, schema: Mapping[str, Any]) -> str:
    words = {"string": "text", "integer": "whole number", "boolean": "true or false"}.get(kind, kind)
    named = {"date-time": "time (ISO 8601, with zone)", "uuid": "id (UUID)"}.get(schema.get("format", ""), words)
    low, high = schema.get("minimum"), schema.get("maximum")
    if low is not None and high is not None and kind in {"integer", "number"}:
        return f"{named}, {low:g} to {high:.15g}"
    return f"{named}, at most {schema['maxLength']} characters" if "maxLength" in schema else named
