"""Bodies of POST /api/v1/tasks that cannot be read: each gets a problem document and changes nothing."""

from __future__ import annotations

import io
import json

import pytest
from django.core.handlers.asgi import ASGIRequest
from django.test import RequestFactory

from queue_app import conf
from queue_app.api.body import body_limit
from queue_app.api.views.tasks import TaskListView
from queue_app.models import Task
from tests.queue_app.api.conftest import assert_problem

TASKS = "/api/v1/tasks"


pytestmark = pytest.mark.usefixtures("nothing_written")


BODIES = {
    "empty": (b"", 400, "body_required"),
    "half an object": (b"{", 400, "invalid_json"),
    "raw line end in a string": (b'{"task_type": "a\nb"}', 400, "invalid_json"),
    "array": (b"[]", 400, "object_expected"),
    "null": (b"null", 400, "object_expected"),
    "invalid UTF-8": (b'{"task_type": "\xff"}', 400, "utf8_required"),
    "surrogates in UTF-8": (b'{"task_type": "\xed\xa0\x80"}', 400, "utf8_required"),
    "UTF-16 without a mark": ('{"a": 1}'.encode("utf-16-le"), 400, "utf8_required"),
    "raw NUL": (b'{"task_type": "a\x00b"}', 400, "utf8_required"),
    "NaN": (b'{"delay": NaN}', 400, "non_finite_number"),
    "-Infinity": (b'{"parameters": {"x": -Infinity}}', 400, "non_finite_number"),
    "1e400": (b'{"timeout": 1e400}', 400, "number_out_of_range"),
    "30 digits": (b'{"parameters": {"x": ' + b"9" * 30 + b"}}", 400, "number_too_long"),
    "key twice below": (b'{"parameters": {"a": [{"x": 1, "x": 2}]}}', 400, "duplicate_key"),
    "deep and whole": (b'{"parameters": {"x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}}", 400, "too_deep"),
    "5 MB": (b'{"parameters": {"x": "' + b"x" * 5_000_000 + b'"}}', 413, "payload_too_large"),
}


@pytest.mark.parametrize(("body", "status", "code"), BODIES.values(), ids=BODIES)
def test_bodies(alice, body, status, code):
    assert_problem(alice.post(TASKS, body), status, code, "body")


@pytest.mark.parametrize(
    ("content_type", "headers"),
    [
        ("application/x-www-form-urlencoded", {}),
        ("multipart/form-data; boundary=x", {}),
        ("", {}),
        ("x" * 10_000, {}),
        ("application/json", {"Content-Encoding": "identity, br"}),
    ],
)
def test_only_plain_json_is_read(alice, anonymous, plain_type, content_type, headers):
    for client in (alice, anonymous):  # refused before authentication: the check of a session would read a form
        response = client.call("POST", TASKS, {"task_type": plain_type}, content_type=content_type, **headers)
        assert_problem(response, 415, "unsupported_media_type")


@pytest.mark.parametrize("content_type", ["application/json", "application/json; charset=utf-8", "Application/JSON"])
def test_json_is_read_by_any_spelling_of_its_type(alice, plain_type, content_type, nothing_written):
    response = alice.call("POST", TASKS, {"task_type": plain_type}, content_type=content_type)
    assert response.status_code == 201
    Task.objects.all().delete()


def wsgi_request(stream):
    """Return a chunked request as a WSGI server passes it: without a length, with a stream that ends."""
    request = RequestFactory().post(TASKS, content_type="application/json")
    del request.META["CONTENT_LENGTH"]
    request.META |= {"HTTP_TRANSFER_ENCODING": "chunked", "wsgi.input": stream, "wsgi.input_terminated": True}
    return request


def call_view(request, user):
    request.user = user
    request._dont_enforce_csrf_checks = True
    response = TaskListView.as_view()(request)
    response.render()
    return response.status_code, json.loads(response.content)


class TestChunkedBodies:
    def test_are_read(self, alice):
        status, data = call_view(wsgi_request(io.BytesIO(b'{"task_type": "nothing"}')), alice.user)
        assert (status, data["code"]) == (400, "unknown_task_type")

    def test_are_read_up_to_the_limit_only(self, alice):
        class Endless(io.RawIOBase):
            taken = 0

            def read(self, size=-1):
                assert size > 0
                self.taken += size
                return b" " * size

        stream = Endless()
        status, data = call_view(wsgi_request(stream), alice.user)
        assert (status, data["code"]) == (413, "payload_too_large")
        assert stream.taken == body_limit(conf.get().payload) + 1

    @pytest.mark.parametrize(
        ("body", "wanted"),
        [
            (b'{"task_type": "nothing"}', (400, "unknown_task_type")),
            (b" " * 5_000_000, (413, "payload_too_large")),
            (b"", (400, "body_required")),
        ],
    )
    def test_come_without_a_length_under_asgi_too(self, alice, body, wanted):
        headers = [(b"content-type", b"application/json"), (b"transfer-encoding", b"chunked")]
        scope = {"type": "http", "method": "POST", "path": TASKS, "query_string": b"", "headers": headers}
        status, data = call_view(ASGIRequest(scope, io.BytesIO(body)), alice.user)
        assert (status, data["code"]) == wanted
