"""The API's pages for people: the reference, and the page of an address with links, filters and examples."""

import json

import pytest

from queue_app.api.browsable import linked
from queue_app.api.examples import examples
from queue_app.api.views.docs import document, type_words

ID = "01a1fc14-da10-717b-a823-56ad4650e023"


def test_the_reference_has_every_operation_without_scripts(client, db):
    text = client.get("/api/docs").content.decode()
    operations = [each for path in document()["paths"].values() for each in path.values()]
    assert len(operations) > 50
    for operation in operations:
        assert f'id="{operation["operationId"]}"' in text
        assert operation["summary"].split("'")[0] in text
    assert "<script" not in text
    assert "{'" not in text, "a schema that no words describe"


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"$ref": "#/components/schemas/Task"}, "Task"),
        ({"anyOf": [{"type": "string", "maxLength": 64}, {"type": "null"}]}, "text, at most 64 characters or null"),
        ({"type": "array", "items": {"type": "string", "format": "uuid"}}, "list of id (UUID)"),
        ({"enum": ["high", "low"]}, "high, low"),
        ({"const": "v1"}, "v1"),
        ({"type": ["integer", "null"], "minimum": 0, "maximum": 100}, "whole number, 0 to 100 or null"),
        ({}, "anything"),
    ],
)
def test_types_in_words(schema, words):
    assert type_words(schema) == words


def test_examples_in_three_languages_are_code():
    found = dict(
        examples("POST", "https://shop.example/api/v1/tasks", {"task_type": "it's", "parameters": {"a": None}})
    )
    assert "-d '{\"task_type\": \"it'\\''s\"" in found["curl"]
    compile(found["Python"], "example", "exec")
    assert '"parameters": {"a": null}' in found["JavaScript"]
    assert "None" in found["Python"]


def test_ids_and_queues_in_an_answer_are_links():
    text = json.dumps(
        {"task_id": ID, "queue": "mail", "id": ID, "message": "<b>", "user": ID, "error": f'"task_id": "{ID}'}
    )
    html = linked(text, "/api/v1/", "/api/v1/dlq/")
    assert f'<a href="/api/v1/tasks/{ID}">{ID}</a>' in html
    assert '<a href="/api/v1/queues/mail">mail</a>' in html
    assert f'<a href="/api/v1/dlq/{ID}">{ID}</a>' in html
    assert html.count("<a ") == 3
    assert "<b>" not in html
    assert "javascript" not in linked('{"queue": "javascript:alert(1)"}', "/api/v1/", "/").partition("<a")[2]


def test_a_page_has_filters_with_their_values(admin_client):
    text = admin_client.get("/api/v1/tasks?status=queued", headers={"Accept": "text/html"}).content.decode()
    assert 'name="status" value="queued"' in text
    assert 'name="task_type" value=""' in text
    assert "Python" in text
    assert '<a href="/api/v1/tasks" aria-current="page">tasks</a>' in text
