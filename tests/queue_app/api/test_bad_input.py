"""Every address that changes something, with every kind of bad input: each gets a problem document and changes nothing.

What to send is made from the API's own document, so a new endpoint or field is tried without a line here.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator
from typing import Any

import pytest
from django.conf import settings as project
from django.contrib.auth.models import User
from django.test import Client

from queue_app import conf
from queue_app.api.body import body_limit
from queue_app.api.schema import SETTINGS
from queue_app.api.views.docs import document
from queue_app.core.ids import uuid7
from queue_app.models import ApiKey, WorkerToken
from queue_app.remote import tokens
from queue_app.services.control.api_keys import create_key, forget_keys
from tests.support.contents import rows_without

JSON = "application/json"
FAKE = "x\r\nERROR fake\x1b[31m"
#: (body, content type, other headers)
BODIES: list[tuple[bytes, str, dict[str, str]]] = [
    *(
        (body, JSON, {})
        for body in (
            b"{", b"[]", b'"text"', b"null", b"7", b"{}}", b"{'a': 1}", b'{"a": NaN}', b'{"a": -Infinity}',
            b'{"a": 1e400}', b'{"a": ' + b"9" * 5000 + b"}", rb'{"a": "\ud800"}', rb'{"a": "\u0000"}',
            b'{"a": 1, "a": 2}', b"\xef\xbb\xbf{}", b"\xff\xfe{\x00}\x00", b'{"a": "\xff"}',
            b'{"a": ' * 900 + b"1" + b"}" * 900, json.dumps({FAKE: FAKE}).encode(),
        )
    ),
    (b"{}", "text/plain", {}),
    (b"a=1", "application/x-www-form-urlencoded", {}),
    (b"<a/>", "application/xml", {}),
    (b"--b--", "multipart/form-data; boundary=b", {}),
    (b"{}", "", {}),
    (b"\x1f\x8b\x08\x00", JSON, {"Content-Encoding": "gzip"}),
]  # fmt: skip
#: One reader reads all bodies, so each endpoint gets every fourth of these, from another one on.
STRIDE = 4
#: Invalid parts of an address, instead of a name or an id.
PLACES = ("a%0d%0aERROR%20fake%1b", "%00", "..%2f..%2f", "9" * 30, "-1", "%F0%9F%92%A5")
WRONG: dict[str, list[Any]] = {
    "string": [5, [], {}, True],
    "integer": ["5", "\u0665", 1.5, True, [], {}, 10**30],
    "number": ["5", True, [], {}],
    "boolean": ["yes", 1, []],
    "object": ["text", 5, []],
    "array": ["text", 5, {}],
}  # fmt: skip


def wrong_values(schema: dict[str, Any]) -> Iterator[Any]:
    """Yield values that a schema refuses."""
    schema = schema.get("anyOf", [schema])[0]
    kind = schema.get("type")
    yield from WRONG.get(kind, ())
    if "enum" in schema:
        yield from (value for value in ("nope", "", FAKE) if value not in schema["enum"])
    if "pattern" in schema:
        most, pattern = schema["maxLength"], schema["pattern"]
        bad = ("a b", "", FAKE, "{x}:*", "a" * 201)
        yield from (value for value in bad if len(value) > most or not re.search(pattern, value))
    if schema.get("format") == "uuid":
        yield from ("nope", "")
    if schema.get("format") == "date-time":
        yield from ("yesterday", "2030-01-01", "2030-01-01T12:00:00")
    if kind in ("integer", "number") and "minimum" in schema:
        yield schema["minimum"] - 1
    if kind in ("integer", "number") and "maximum" in schema:
        yield schema["maximum"] + 1
    if kind == "array":
        yield from ([value] for value in wrong_values(schema.get("items", {})))


def resolved(schema: dict[str, Any]) -> dict[str, Any]:
    """Resolve a reference; of several schemas take the first."""
    schema = schema.get("anyOf", [schema])[0]
    components = SETTINGS["APPEND_COMPONENTS"]["schemas"]
    return components[schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema


def requests() -> Iterator[tuple[str, str, list[Any]]]:
    """Yield (method, address, bad bodies as objects) of every changing endpoint."""
    for path, methods in document()["paths"].items():
        for method, operation in methods.items():
            if method == "get":
                continue
            content = operation.get("requestBody", {}).get("content", {}).get(JSON)
            bodies = []
            if content is not None:
                example = next(iter(content.get("examples", {}).values()), {}).get("value", {})
                fields = resolved(content["schema"]).get("properties", {})
                bodies = [example | {name: value} for name in fields for value in wrong_values(fields[name])]
                bodies += [example | {"colour": 1}, example | {FAKE: 1}, example | {"": 1}]
                if content["schema"].get("$ref", "").endswith("Submission"):
                    bodies += [example | {"parameters": value} for value in ({"a": {"\x00": 1}}, {"n": 2**53 + 1})]
            yield method.upper(), path, bodies


@pytest.fixture
def send(transactional_db, settings, queues, stored, caplog):
    """Return a function that sends a request with all permissions."""
    settings.TASKQUEUE = {
        **project.TASKQUEUE,
        "API": {"SUBMITS_PER_MINUTE": 0, "HEAVY_PER_MINUTE": 0, "READS_PER_MINUTE": 0},
    }
    forget_keys()
    user = User.objects.create_user("root", is_staff=True, is_superuser=True)  # no query of permissions a request
    caplog.set_level(logging.INFO)
    client, user_key, worker_key = Client(), create_key(user, "root")[1], tokens.create("far")[1]

    def call(method: str, path: str, body: bytes = b"", kind: str = JSON, **headers: str) -> Any:
        key = worker_key if path.startswith("/internal") else user_key
        headers = {"Authorization": f"Bearer {key}", "If-Match": "*", **headers}
        return client.generic(method, path, body, kind, headers=headers)

    yield call
    forget_keys()


def rows() -> dict[str, list[str]]:
    """Return all rows, without the time when keys were last used."""
    return rows_without(ApiKey, WorkerToken)


def test_bad_input_changes_nothing(send, stored, plain_type, caplog):
    task, registered = stored(), send("POST", "/internal/workers/register", _registration(plain_type))
    names = {
        "{task_id}": str(task.id),
        "{name}": "default",
        "{band}": "high",
        "{worker_id}": registered.json()["worker_id"],
        "{limit_id}": "1",
        "{letter_id}": str(uuid7()),
        "{operation_id}": str(uuid7()),
    }
    before, sent = rows(), 0
    for method, path, bodies in requests():
        address = path
        for name, value in names.items():
            address = address.replace(name, value)
        tries = [(address, json.dumps(body).encode(), JSON, {}) for body in bodies]
        if bodies:
            tries += [(address, *body) for body in BODIES[sent % STRIDE :: STRIDE]]
            tries.append((address, b" " * (8 * body_limit(conf.get().payload) + 1), JSON, {}))
        if address != path:
            place = path[path.index("{") : path.index("}") + 1]
            tries += [(path.replace(place, bad), b"", JSON, {}) for bad in PLACES]
        for tried, body, kind, headers in tries:
            answer = send(method, tried, body, kind, **headers)
            what = (method, tried, body[:200], answer.status_code, answer.content[:300])
            assert 400 <= answer.status_code < 500, what
            assert answer.headers["Content-Type"] == "application/problem+json", what
            assert {"title", "status", "code", "detail"} <= answer.json().keys(), what
            assert len(answer.content) < 20_000, what
        sent += len(tries)
        assert rows() == before, (method, path)
    assert sent > 1500, sent
    for record in caplog.records:
        assert "\x1b" not in record.getMessage()
        assert "\nERROR" not in record.getMessage()


def test_a_parameter_that_no_endpoint_knows(send, stored):
    """Every endpoint refuses it, except those that anyone may call, such as probes."""
    asked = 0
    for path, methods in document()["paths"].items():
        for method, operation in methods.items():
            answer = send(method.upper(), f"{re.sub(r'{[^}]*}', 'x', path)}?colour=1", b"{}")
            if operation["security"] == [{}]:
                assert answer.json().get("code") != "unknown_parameter", path
                continue
            if answer.status_code == 404 and path == "/api/v1/workflows/{workflow_id}/events/":
                continue  # looks for the workflow first
            asked += 1
            assert (answer.status_code, answer.json()["code"]) == (400, "unknown_parameter"), (method, path)
    assert asked > 60
    for method, path in (("TRACE", "tasks"), ("POST", "admin/tasks")):
        assert send(method, f"/api/v1/{path}?colour=1").status_code == 405


def _registration(task_type: str) -> bytes:
    return json.dumps({"name": "far", "task_types": [task_type]}).encode()
