"""The OpenAPI document is valid and complete, and the API conforms to it for every request.

Schemathesis and the validator of documents take seconds to import, in each process that collects the tests: so the
tests do that themselves.
"""

# ruff: noqa: PLC0415
from __future__ import annotations

import json
import os
import re

import pytest
from django.conf import settings as project
from django.contrib.auth.models import Permission, User
from django.urls import get_resolver
from drf_spectacular.drainage import GENERATOR_STATS
from hypothesis import HealthCheck, given, settings

from queue_app import registry, task
from queue_app.api import waiting
from queue_app.api.base import NotFoundView
from queue_app.api.views import docs, metrics
from queue_app.api.views.docs import document
from queue_app.core.redaction import MASK
from queue_app.remote import tokens
from queue_app.services.control.api_keys import create_key, forget_keys

#: Requests per endpoint; `./dev fuzz` sends thousands.
EXAMPLES = int(os.environ.get("TASKQUEUE_FUZZ_EXAMPLES", "1"))
#: Views without a description: the document itself, pages, metrics and unknown addresses.
UNDESCRIBED = {NotFoundView, docs.DocsView, docs.SchemaView, metrics.MetricsView}


def test_the_document_is_valid_and_describes_every_endpoint():
    from drf_spectacular.validation import validate_schema

    from queue_app.api.schema import served_document

    GENERATOR_STATS.reset()
    found = served_document()
    validate_schema(found)
    assert not GENERATOR_STATS
    views = {
        pattern.callback.cls
        for pattern in next(r for r in get_resolver().url_patterns if r.app_name == "queue_app").url_patterns
        if hasattr(pattern.callback, "cls")  # the status page is no part of the API
        and pattern.callback.cls.__module__.startswith("queue_app.api.")
    }
    assert {view for view in views if not all(accepted.id for accepted in view.accepted.values())} <= UNDESCRIBED
    assert {view for view in views if not view.accepted} <= UNDESCRIBED
    references = set(re.findall(r'"#/components/schemas/(\w+)"', json.dumps(found)))
    assert references == found["components"]["schemas"].keys() - {"QueueNumbers"}  # this one is written out
    for path in found["paths"].values():
        for operation in path.values():
            assert operation["summary"]
            if "requestBody" in operation and operation["operationId"] not in {
                "resume_queue",
                "resume_schedule",
                "resume_workflow",
            }:
                assert operation["requestBody"]["content"]["application/json"]["examples"]


def test_the_page_has_nothing_inline(client, db):
    response = client.get("/api/docs")
    assert response.status_code == 200
    text = response.content.decode()
    assert "<style" not in text
    assert " style=" not in text
    assert all("src=" in tag for tag in text.split("<script")[1:])
    assert "script-src 'self'" in response.headers["Content-Security-Policy"]
    assert client.get("/api/schema").json()["openapi"] == "3.1.0"


@pytest.mark.parametrize(("secret", "shown"), [([], [17, "4111"]), (["card"], {"order": 17, "card": MASK})])
def test_positional_arguments_match_their_description(alice, stored, known_tasks, secret, shown):
    """They are answered by name if one of them is secret."""
    from jsonschema import Draft202012Validator

    def charge(order, card):
        """Do nothing."""

    charge.__qualname__ = "charge"
    found = stored(task_type=registry.type_of(task(sensitive=secret)(charge)), args=[17, "4111"])
    answer = alice.get(f"/api/v1/tasks/{found.id}").json()
    assert answer["args"] == shown
    described = document()["components"]["schemas"]["TaskDetail"]["properties"]["args"]
    Draft202012Validator(described).validate(answer["args"])


@pytest.fixture
def address(transactional_db, settings, live_server):
    settings.TASKQUEUE = {**project.TASKQUEUE, "API": {"MAX_WAITERS": 1, "HEAVY_PER_MINUTE": 0}}
    forget_keys()
    yield live_server.url
    forget_keys()


def test_every_request_is_answered_as_described(address, override, monkeypatch):
    import schemathesis
    from schemathesis.checks import not_a_server_error
    from schemathesis.specs.openapi import checks as openapi

    checks = [
        not_a_server_error,
        openapi.content_type_conformance,
        openapi.response_schema_conformance,
        openapi.status_code_conformance,
    ]
    override("queue_app.api.waiting", MAX_SECONDS=0)
    monkeypatch.setattr("queue_app.api.views.tasks.wait_for_end", lambda *_: False)
    monkeypatch.setattr("queue_app.workflows.views.wait_for_workflow", lambda *_: False)
    user = User.objects.create_user("fuzz", is_staff=True)
    user.user_permissions.set(Permission.objects.filter(content_type__app_label="queue_app"))
    _key, secret = create_key(user, "fuzz")
    schema = schemathesis.openapi.from_url(f"{address}/api/schema")
    headers = {"Authorization": f"Bearer {secret}"}
    of_worker = {"Authorization": f"Bearer {tokens.create('fuzz')[1]}"}
    asked = []
    for found in schema.get_all_operations():
        operation = found.ok()
        if "/events/" in operation.path:
            continue  # this server is WSGI

        @settings(
            max_examples=EXAMPLES,
            deadline=None,
            derandomize=True,
            database=None,
            suppress_health_check=[*HealthCheck],
        )
        @given(case=operation.as_strategy())
        def keeps_to_it(case):
            case.call_and_validate(headers=of_worker if "/internal/" in case.path else headers, checks=checks)

        keeps_to_it()
        asked.append(operation.label)
    assert len(asked) > 30
    assert waiting.streams.taken == 0
