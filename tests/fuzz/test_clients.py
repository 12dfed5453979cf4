"""Clients that strangers generate from the document: they are made without a warning, and they work.

Not by default: `./dev fuzz`, which CI runs; the one for TypeScript needs npm and its registry.
"""

# ruff: noqa: PLC0415 - the client exists only after its generation
from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings as project
from django.contrib.auth.models import Permission, User

from queue_app.api.views.docs import document
from queue_app.models import Queue
from queue_app.remote import tokens
from queue_app.services.control.api_keys import create_key, forget_keys
from queue_app.services.repair.rebuild import rebuild
from tests.support.programs import require

pytestmark = [pytest.mark.fuzz, pytest.mark.timeout(600)]
GPU = "taskqueue_project.demo.tasks.needs_gpu"
NEW = {"task_type": GPU, "parameters": {"run_id": 1}}
STRICT = ["--strict", "--noEmit", "--exactOptionalPropertyTypes", "--noUncheckedIndexedAccess"]


@pytest.fixture
def address(transactional_db, settings, live_server):
    unlimited = dict.fromkeys(("HEAVY_PER_MINUTE", "READS_PER_MINUTE", "SUBMITS_PER_MINUTE"), 0)
    settings.TASKQUEUE = {**project.TASKQUEUE, "API": unlimited}
    Queue.objects.get_or_create(name="default")
    forget_keys()
    yield live_server.url
    forget_keys()


@pytest.fixture
def generated(tmp_path, monkeypatch):
    """Generate the client with openapi-python-client, strictly, and make it importable."""
    (tmp_path / "openapi.json").write_text(json.dumps(document()))
    binaries = Path(sys.executable).parent
    command = [
        binaries / "openapi-python-client", "generate", "--path", tmp_path / "openapi.json", "--meta", "none",
        "--output-path", tmp_path / "generated_client", "--fail-on-warning",
    ]  # fmt: skip
    environment = {**os.environ, "PATH": f"{binaries}{os.pathsep}{os.environ['PATH']}"}
    made = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stdout + made.stderr
    monkeypatch.syspath_prepend(str(tmp_path))
    yield importlib.import_module("generated_client")
    for name in [name for name in sys.modules if name.partition(".")[0] == "generated_client"]:
        del sys.modules[name]


class Calls:
    """Calls operations of the generated client by name; each must answer as the document says."""

    def __init__(self, address: str, secret: str) -> None:
        from generated_client import AuthenticatedClient

        self.client = AuthenticatedClient(base_url=address, token=secret, raise_on_unexpected_status=True)
        self.made: set[str] = set()

    def __call__(self, where: str, *path: Any, body: Any = None, **parameters: Any) -> Any:
        """Call ``tag.operation``; ``body`` is (class of the model, its values)."""
        module = importlib.import_module(f"generated_client.api.{where}")
        if body is not None:
            models = importlib.import_module("generated_client.models")
            parameters["body"] = getattr(models, body[0]).from_dict(body[1])
        answer = module.sync_detailed(*path, client=self.client, **parameters)
        assert answer.status_code < 400, (where, answer.content)
        assert answer.parsed is not None, where
        self.made.add(where)
        return answer.parsed


def test_the_generated_client_makes_the_commonest_calls(generated, address):
    user = User.objects.create_user("stranger", is_staff=True)
    user.user_permissions.set(Permission.objects.filter(content_type__app_label="queue_app"))
    call = Calls(address, create_key(user, "stranger")[1])
    worker = Calls(address, tokens.create("stranger", capabilities=["gpu"])[1])
    with call.client, worker.client:
        calls_about_tasks(call)
        calls_about_queues(call)
        calls_about_limits(call)
        calls_about_schedules(call)
        calls_about_workflows(call)
        assert rebuild() is not None
        calls_of_a_worker(call, worker)
    assert len(call.made | worker.made) >= 30


def calls_about_tasks(call):
    task = call("tasks.submit_task", body=("Submission", NEW))
    assert call("tasks.get_task", task.id).parameters.to_dict() == {"run_id": 1}
    stored = call("tasks.submit_tasks", body=("Submissions", {"tasks": [NEW, NEW]}))
    page = call("tasks.list_tasks", page_size=2)
    rest = call("tasks.list_tasks", page_size=2, cursor=page.next_cursor)
    assert {found.id for found in page.results + rest.results} == {task.id, *(each.id for each in stored.tasks)}
    assert call("tasks.count_tasks").count == 3
    assert call("tasks.reprioritise_task", task.id, body=("PriorityChange", {"priority": "high"})).priority == "high"
    assert call("tasks.explain_task", task.id).reasons
    assert call("tasks.cancel_task", task.id).status == "cancelled"
    chosen = {"action": "cancel", "filter": {"status": ["pending"]}}
    started = call("tasks.act_on_tasks", body=("TaskSelection", chosen))
    assert call("operations.get_operation", started.id).kind == "cancel"
    assert [each.id for each in call("operations.list_operations").results] == [started.id]


def calls_about_queues(call):
    assert "default" in {queue.name for queue in call("queues.list_queues").results}
    assert call("queues.pause_queue", "default", body=("PauseUntil", {"reason": "a test"})).paused
    assert not call("queues.resume_queue", "default", body=("Nothing", {})).paused
    version = importlib.import_module("generated_client.api.queues.get_queue").sync_detailed(
        "default", client=call.client
    )
    edited = call(
        "queues.edit_queue", "default", body=("QueueEdit", {"max_concurrent": 3}), if_match=version.headers["ETag"]
    )
    assert edited.max_concurrent == 3
    assert call("queues.get_queue_stats", "default").depth == 0
    assert call("queues.get_stats").workers.active == 0
    assert len(call("queues.list_policies").results) == 5
    assert call("staff.list_workers").results == []
    assert call("staff.list_all_tasks", page_size=1).next_
    assert "task.delete" in {entry.action for entry in call("staff.list_audit_entries").results}


def calls_about_limits(call):
    limit = call("limits.add_limit", body=("NewLimit", {"scope": "key", "name": "acme", "max_concurrent": 2}))
    assert [each.name for each in call("limits.list_limits").results] == ["acme"]
    assert call("limits.edit_limit", limit.id, body=("LimitEdit", {"max_concurrent": 4})).max_concurrent == 4
    assert call("limits.pause", body=("Pause", {"scope": "type", "name": GPU})).paused
    assert not call("limits.resume", body=("Resumption", {"scope": "type", "name": GPU})).paused


def calls_about_schedules(call):
    nightly = {"name": "nightly", "task_type": GPU, "parameters": {"run_id": 2}, "cron": "0 3 * * *", "zone": "UTC"}
    schedule = call("schedules.add_schedule", body=("NewSchedule", nightly))
    assert call("schedules.run_schedule", schedule.id, body=("WithReason", {})).id
    assert len(call("schedules.list_ticks", schedule.id).results) == 1
    assert call("schedules.pause_schedule", schedule.id, body=("PauseUntil", {})).paused
    assert [each.name for each in call("schedules.list_schedules").results] == ["nightly"]
    end = datetime.now(UTC)
    wanted = {"start": (end - timedelta(days=3)).isoformat(), "end": end.isoformat(), "dry_run": True}
    assert call("schedules.backfill_schedule", schedule.id, body=("Backfill", wanted)).count == 3


def calls_about_workflows(call):
    tasks = [{"name": "first", **NEW}, {"name": "second", **NEW, "after": ["first"]}]
    flow = call("workflows.submit_workflow", body=("WorkflowSubmission", {"name": "two steps", "tasks": tasks}))
    assert call("workflows.get_workflow", flow.id).state == "running"
    assert call("workflows.get_workflow_graph", flow.id).edges == 1
    assert [each.id for each in call("workflows.list_workflows").results] == [flow.id]
    assert call("workflows.signal_workflow", flow.id, body=("NewSignal", {"name": "go"})).awaited is False
    assert call("workflows.cancel_workflow", flow.id, body=("WithReason", {})).changed == 2
    assert call("dead_letters.list_dead_letters").results == []
    assert call("operations.live").status == "ok"


def calls_of_a_worker(call, worker):
    registered = worker("remote_workers.register_worker", body=("WorkerRegistration", {"capabilities": ["gpu"]}))
    call("tasks.submit_task", body=("Submission", NEW))
    [claimed] = worker("remote_workers.poll", registered.id, body=("Poll", {"available_capacity": 1})).tasks
    beat = {"running": [{"task_id": str(claimed.id), "attempt": claimed.attempt}]}
    assert worker("remote_workers.heartbeat", registered.id, body=("WorkerHeartbeat", beat)).acknowledged
    done = {"task_id": str(claimed.id), "attempt": claimed.attempt, "status": "completed", "result": {"n": 7}}
    assert worker("remote_workers.report", registered.id, body=("Result", done)).accepted
    assert call("tasks.get_task", claimed.id).result == {"n": 7}
    worker("remote_workers.deregister_worker", registered.id, body=("Deregistration", {}))


def test_the_types_for_typescript_are_strict(tmp_path):
    npm = require("npm")
    (tmp_path / "openapi.json").write_text(json.dumps(document()))

    def run(*command: Any) -> None:
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr

    packages = ("openapi-typescript@^7.6", "typescript@^5.5")
    run(npm, "install", "--no-audit", "--no-fund", "--ignore-scripts", "--prefix", tmp_path, *packages)
    programs = tmp_path / "node_modules" / ".bin"
    run(programs / "openapi-typescript", "openapi.json", "--output", "schema.ts")
    (tmp_path / "use.ts").write_text(
        'import type { components, operations } from "./schema";\n'
        'const task: components["schemas"]["Submission"] = { task_type: "a", parameters: {} };\n'
        'type Page = operations["list_workflows"]["responses"][200]["content"]["application/json"];\n'
        "export const ids = (page: Page): string[] => page.results.map((each) => each.id);\n"
        "export const type: string = task.task_type;\n"
    )
    run(programs / "tsc", *STRICT, "schema.ts", "use.ts")
