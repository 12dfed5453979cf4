"""Every address as an HTML page."""

from __future__ import annotations

import json

from queue_app.api.views.docs import document

BROWSER = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"


def page(client, path: str):
    response = client.http.get(path, headers={"Accept": BROWSER})
    return response.status_code, response.headers.get("Content-Type", ""), response.content.decode()


def test_every_address_shows_its_purpose_and_an_example(staff, stored):
    client, task = staff("view_task", "view_worker"), stored()
    shown = 0
    for path, methods in document()["paths"].items():
        if not path.startswith("/api/v1/") or path.endswith(("/events/", "/events", "/export/", "/export")):
            continue
        address = path.replace("{task_id}", str(task.id)).replace("{name}", "default").replace("{band}", "high")
        status, kind, text = page(client, address)
        assert status < 500
        assert kind == "text/html; charset=utf-8", path
        assert "<script>" not in text
        assert "style=" not in text
        for method, operation in methods.items():
            if method == "get":
                assert "curl -X GET" in text, path
                assert len(text.split("<h1>")[1].split("</h1>")[0]) > 3
                continue
            assert f'data-method="{method.upper()}"' in text, path
            for example in (
                operation.get("requestBody", {})
                .get("content", {})
                .get("application/json", {})
                .get("examples", {})
                .values()
            ):
                assert next(iter(example["value"])) in text, path
            shown += 1
    assert shown > 15


def test_values_are_escaped_and_programs_get_json(alice, stored):
    task = stored(parameters={"a": "</pre><script>alert(1)</script>"})
    status, _, text = page(alice, f"/api/v1/tasks/{task.id}")
    assert status == 200
    assert "<script>alert" not in text
    assert f'data-path="/api/v1/tasks/{task.id}/priority"' in text
    assert json.loads(alice.http.get(f"/api/v1/tasks/{task.id}").content)["task_id"] == str(task.id)
    assert page(alice, "/api/v1/tasks/nonsense")[:2] == (404, "text/html; charset=utf-8")
    refused = alice.http.post("/api/v1/tasks", b"{", content_type="application/json", headers={"Accept": BROWSER})
    assert refused.headers["Content-Type"] == "application/problem+json"


def test_anonymous_callers_get_only_the_error(anonymous):
    status, kind, text = page(anonymous, "/api/v1/tasks")
    assert (status, kind) == (401, "text/html; charset=utf-8")
    assert "not_authenticated" in text
