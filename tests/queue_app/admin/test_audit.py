"""Every page that changes something leaves an audit record; test_audit_walk covers forms, API calls and commands."""

import uuid
from contextlib import suppress
from datetime import timedelta

import pytest
from django.apps import apps
from django.contrib import admin
from django.contrib.admin.models import LogEntry
from django.urls import URLPattern, URLResolver, get_resolver, reverse
from django.utils import timezone

from queue_app.models import AuditEntry, DeadLetter, Operation, Queue, SavedView, Schedule, Task, Workflow as Row
from queue_app.models.operation import OperationKind
from queue_app.models.workflow import WorkflowNode, WorkflowState
from queue_app.registry import type_of
from queue_app.remote import tokens
from queue_app.schedules.edit import values_of
from queue_app.services import pause, pause_everything
from queue_app.services.control import audit
from queue_app.services.control.advice import advice
from queue_app.services.control.api_keys import create_key
from queue_app.services.operations.request import Action, start_operation, start_replay
from queue_app.services.read.dead_letters import DeadLetterFilter
from queue_app.services.read.task_filter import TaskFilter
from tests.queue_app.what_if.test_advice import HELD, snapshots
from tests.support.engine import rolled_back
from tests.support.factories import (
    DeadLetterFactory,
    QueueFactory,
    ScheduleFactory,
    StaffFactory,
    WorkerFactory,
    let_wait,
)
from tests.support.faults import failing
from tests.support.pages import CONFIRMED
from tests.workers import chores

ADMIN = "/admin/queue_app/"
READS = "reads only"


class Stage:
    """One object of each kind that staff can change."""

    def __init__(self, make_task, make_worker, end_task, run_task):
        self.waiting, self.scheduled = make_task(), make_task(run_after=timezone.now() + timedelta(days=1))
        self.failed, self.dead = end_task(make_task(), "failed"), end_task(make_task(), "dead_letter")
        self.letter = DeadLetterFactory(task=self.dead, fingerprint="f")
        self.worker = make_worker()
        self.running = run_task(make_task(), self.worker)
        self.replay = start_replay(DeadLetterFilter(queue="none"), by="")
        self.operation = start_operation(Action(kind=OperationKind.CANCEL), TaskFilter(queues=["none"]), by="")
        self.view = SavedView.objects.create(name="mine", of="task", query="status=failed", user="superuser")
        QueueFactory(name="paused")
        pause("paused")
        self.schedule, self.paused = ScheduleFactory(), ScheduleFactory(paused=True, paused_at=timezone.now())
        self.changed = ScheduleFactory()
        self.approvable = let_wait(make_task(), schema={"approved": {"type": "boolean"}})
        self.flow = Row.objects.create(name="flow", created_at=timezone.now())
        self.paused_flow = Row.objects.create(name="paused", created_at=timezone.now(), paused=True)
        self.failed_flow = Row.objects.create(name="failed", created_at=timezone.now(), nodes=1)
        Task.objects.filter(pk=end_task(make_task(), "failed").pk).update(workflow_id=self.failed_flow.pk)
        self.late_flow = Row.objects.create(name="late", created_at=timezone.now(), nodes=1)
        Task.objects.filter(pk=make_task().pk).update(workflow_id=self.late_flow.pk)
        paid, self.holder = end_task(make_task(), "completed"), end_task(make_task(), "failed").pk
        self.undone_flow = Row.objects.create(
            name="undone", created_at=timezone.now(), nodes=2, state=WorkflowState.COMPENSATING
        )
        WorkflowNode.objects.create(task_id=self.holder, compensates=paid.pk)
        Task.objects.filter(pk__in=[paid.pk, self.holder]).update(workflow_id=self.undone_flow.pk)
        Schedule.objects.filter(pk=self.changed.pk).update(declaration=values_of(self.changed), every=60)


@pytest.fixture
def stage(make_task, make_worker, end_task, run_task):
    return Stage(make_task, make_worker, end_task, run_task)


def suggestion() -> str:
    """Let the overview make a suggestion; return its key."""
    snapshots(**HELD)
    WorkerFactory(concurrency=12, free_slots=9)
    return advice()[0].key


def simulation() -> Operation:
    """Return a simulation that is done, and tried a limit."""
    now = timezone.now()
    return Operation.objects.create(
        kind=OperationKind.SIMULATE, target="policies", state="done", total=100, created_at=now, finished_at=now,
        arguments={"limits": {"queue:paused": {"max_concurrent": 5}}},
    )  # fmt: skip


DAY = {"start_0": "2026-01-01", "start_1": "00:00", "end_0": "2026-01-02", "end_1": "00:00"}
#: URL name -> (arguments, posted data), or why it needs no record.
PAGES = {
    "queue_app_task_cancel": lambda s: ([s.waiting.pk], {}),
    "queue_app_task_priority": lambda s: ([s.waiting.pk], {"priority": "high"}),
    "queue_app_task_retry": lambda s: ([s.failed.pk], {}),
    "queue_app_task_run_now": lambda s: ([s.scheduled.pk], {}),
    "queue_app_task_run_again": lambda s: ([s.waiting.pk], {"parameters": "{}"}),
    "queue_app_task_new": lambda _: ([], {"task_type": type_of(chores.echo), "parameters": '{"value": 1}'}),
    "queue_app_task_save_view": lambda _: ([], {"name": "failed", "query": "status=failed"}),
    "queue_app_task_delete_view": lambda s: ([s.view.pk], {}),
    "queue_app_deadletter_replay": lambda s: ([s.letter.pk], {}),
    "queue_app_deadletter_edit": lambda s: ([s.letter.pk], {"parameters": "{}"}),
    "queue_app_deadletter_discard": lambda s: ([s.letter.pk], {}),
    "queue_app_deadletter_groups": READS,
    "queue_app_deadletter_matching": lambda _: ([], {"act": "discard", "fingerprint": "f"}),
    "queue_app_deadletter_save_view": lambda _: ([], {"name": "open", "query": "state=open"}),
    "queue_app_deadletter_delete_view": lambda s: ([s.view.pk], {}),
    "queue_app_queue_pause": lambda _: (["default"], {}),
    "queue_app_queue_resume": lambda _: (["paused"], {}),
    "queue_app_runtimesettings_pause": lambda _: (["1"], {}),
    "queue_app_runtimesettings_resume": lambda _: ([str(pause_everything().pk)], {}),
    "queue_app_schedule_pause": lambda s: ([s.schedule.pk], {}),
    "queue_app_schedule_resume": lambda s: ([s.paused.pk], {}),
    "queue_app_schedule_run": lambda s: ([s.schedule.pk], {}),
    "queue_app_schedule_give_back": lambda s: ([s.changed.pk], {}),
    "queue_app_schedule_backfill": lambda s: ([s.schedule.pk], DAY | {"start_it": "Start"}),
    "queue_app_schedule_preview": READS,
    "queue_app_schedule_week": READS,
    "queue_app_queue_dismiss": lambda _: ([], {"key": suggestion()}),
    "queue_app_queue_live": READS,
    "queue_app_queue_now": READS,
    "queue_app_queue_charts": READS,
    "queue_app_task_live": READS,
    "queue_app_task_suggest": READS,
    "queue_app_task_stack": lambda s: ([s.running.pk], {}),
    "queue_app_taskstats_type": READS,
    "queue_app_taskstats_user": READS,
    "queue_app_taskstats_key": READS,
    "queue_app_task_decrypt": lambda s: ([s.waiting.pk], {}),
    "queue_app_task_signal": lambda s: ([s.approvable.pk], {"field_approved": "true"}),
    "queue_app_workflow_cancel": lambda s: ([s.flow.pk], {}),
    "queue_app_workflow_pause": lambda s: ([s.flow.pk], {}),
    "queue_app_workflow_resume": lambda s: ([s.flow.pk], {}),
    "queue_app_workflow_retry": lambda s: ([s.flow.pk], {}),
    "queue_app_workflow_stop_undoing": lambda s: ([s.undone_flow.pk], {"reason": "enough"}),
    "queue_app_workflow_skip": lambda s: ([s.undone_flow.pk], {"task": str(s.holder), "reason": "because"}),
    "queue_app_workflow_reprioritise": lambda s: ([s.flow.pk], {"priority": "high"}),
    "queue_app_workflow_signal": lambda s: ([s.flow.pk], {"name": "approved"}),
    "queue_app_worker_drain": lambda s: ([s.worker.pk], {}),
    "queue_app_operation_what_if": lambda _: ([], {"hours": 24, "scenario": ""}),
    "queue_app_operation_apply": lambda _: ([simulation().pk], {}),
    "queue_app_operation_stop": lambda s: ([s.operation.pk], {}),
    "queue_app_apikey_revoke": lambda _: ([create_key(StaffFactory(), "reports")[0].pk], {}),
    "queue_app_workertoken_revoke": lambda _: ([tokens.create("renderer")[0].pk], {}),
    "queue_app_workertoken_rotate": lambda _: ([tokens.create("renderer")[0].pk], {}),
}
DJANGOS = {"changelist", "add", "history", "delete", "change"}  # log_change and similar methods record these


def own_admins():
    models = sorted(apps.get_app_config("queue_app").get_models(), key=lambda model: model.__name__)
    return {model: admin.site.get_model_admin(model) for model in models if admin.site.is_registered(model)}


def test_every_page_that_changes_something_is_listed_here():
    names = {pattern.name or "" for model_admin in own_admins().values() for pattern in model_admin.get_urls()}
    own = {name for name in names - {""} if name.rpartition("_")[2] not in DJANGOS}
    assert {name for name in own if not name.startswith("queue_app_limit")} == set(PAGES)


def test_every_page_that_changes_something_leaves_a_record(staff, stage, monkeypatch):
    for name in (name for name, how in PAGES.items() if how is not READS):
        with rolled_back(), monkeypatch.context() as patch:
            if "schedule" not in name and "new" not in name:  # the others are of task types that no code knows
                patch.setattr("queue_app.registry.get", lambda task_type: task_type)
            args, data = PAGES[name](stage)
            address = reverse(f"admin:{name}", args=args)
            if not any(word in name for word in ("edit", "again", "matching", "backfill", "what_if", "signal", "new")):
                assert staff.get(address).status_code == 405, name
            wanted = 200 if "rotate" in name or "decrypt" in name else 302  # these show a secret
            assert staff.post(address, data | CONFIRMED).status_code == wanted, name
            entry = AuditEntry.objects.get()
            assert (entry.by, entry.via) == ("superuser", "admin"), name
            if "view" not in name:
                assert entry.reason == "because" or "stop" in name, name
                assert LogEntry.objects.exists(), name


def test_every_action_on_many_leaves_a_record(staff, stage):
    Task.objects.filter(pk=stage.waiting.pk).update(priority=0)
    default, paused = (Queue.objects.get(pk=name) for name in ("default", "paused"))
    targets = {
        "task": stage.waiting, "task retry_selected": stage.failed, "task run_now_selected": stage.scheduled,
        "deadletter": stage.letter, "queue": default, "queue resume_selected": paused, "worker": stage.worker,
        "operation": stage.replay, "schedule": stage.schedule, "schedule resume_selected": stage.paused,
    }  # fmt: skip
    for model, model_admin in own_admins().items():
        name = model._meta.model_name
        for action in (getattr(action, "__name__", action) for action in model_admin.actions or () if name != "limit"):
            target = targets.get(f"{name} {action}") or targets[name]
            data = {"action": action, "index": "0", "_selected_action": [str(target.pk)], **CONFIRMED}
            with rolled_back():
                staff.post(f"{ADMIN}{name}/", data | {"priority": "normal"})
                assert (AuditEntry.objects.count(), LogEntry.objects.count()) == (1, 1), (name, action)


# -- API ------------------------------------------------------------------------------

UNSAFE = ("post", "put", "patch", "delete")


def api_views():
    found = {}

    def walk(patterns, prefix=""):
        for pattern in patterns:
            if isinstance(pattern, URLResolver):
                walk(pattern.url_patterns, prefix + str(pattern.pattern))
            elif isinstance(pattern, URLPattern) and hasattr(pattern.callback, "view_class"):
                found[pattern.name] = pattern.callback.view_class

    walk([item for item in get_resolver().url_patterns if getattr(item, "app_name", "") == "queue_app"])
    return {name: view for name, view in found.items() if any(hasattr(view, method) for method in UNSAFE)}


COUNT_WORDS = {"task_type": "taskqueue_project.demo.tasks.count_words", "parameters": {"document_id": 1}}
NIGHTLY = COUNT_WORDS | {"name": "nightly", "cron": "0 3 * * *"}
RANGE = {"start": "2026-01-01T00:00:00Z", "end": "2026-01-02T00:00:00Z"}
#: Name -> (method, address, body) of a call that succeeds.
CALLS = {
    "task": lambda s: ("delete", f"tasks/{s.waiting.pk}", {}),
    "task-priority": lambda s: ("put", f"tasks/{s.waiting.pk}/priority", {"priority": "high"}),
    "admin-task-priority": lambda s: ("put", f"admin/tasks/{s.waiting.pk}/priority", {"priority": "high"}),
    "queue-pause": lambda _: ("post", "queues/default/pause", {}),
    "queue-resume": lambda _: ("post", "queues/paused/resume", {}),
    "dead-letters-replay": lambda _: ("post", "dlq/replay", {"filter": {"queue": "default"}}),
    "dead-letters-discard": lambda _: ("post", "dlq/discard", {"filter": {"queue": "default"}}),
    "dead-letter": lambda s: ("delete", f"dlq/{s.letter.pk}", {}),
    "dead-letter-replay": lambda s: ("post", f"dlq/{s.letter.pk}/replay", {}),
    "operation": lambda s: ("delete", f"operations/{s.replay.pk}", {}),
    "schedule-list": lambda _: ("post", "schedules", NIGHTLY),
    "schedule": lambda s: ("patch", f"schedules/{s.schedule.pk}", {"every": 60}),
    "schedule-pause": lambda s: ("post", f"schedules/{s.schedule.pk}/pause", {}),
    "schedule-resume": lambda s: ("post", f"schedules/{s.paused.pk}/resume", {}),
    "schedule-run": lambda s: ("post", f"schedules/{s.schedule.pk}/run", {}),
    "schedule-backfill": lambda s: ("post", f"schedules/{s.schedule.pk}/backfill", RANGE),
    "workflow-cancel": lambda s: ("post", f"workflows/{s.flow.pk}/cancel", {}),
    "workflow-pause": lambda s: ("post", f"workflows/{s.flow.pk}/pause", {}),
    "workflow-resume": lambda s: ("post", f"workflows/{s.paused_flow.pk}/resume", {}),
    "workflow-retry": lambda s: ("post", f"workflows/{s.failed_flow.pk}/retry", {}),
    "workflow-stop-undoing": lambda s: ("post", f"workflows/{s.undone_flow.pk}/stop-undoing", {"reason": "enough"}),
    "workflow-skip": lambda s: ("post", f"workflows/{s.undone_flow.pk}/skip", {"task_id": str(s.holder)}),
    "workflow-priority": lambda s: ("put", f"workflows/{s.late_flow.pk}/priority", {"priority": "high"}),
    "workflow-signal": lambda s: ("post", f"workflows/{s.flow.pk}/signal", {"name": "approved"}),
    "task-signal": lambda s: ("post", f"tasks/{s.waiting.pk}/signal", {"name": "approved"}),
    "task-bulk-actions": lambda s: ("post", "tasks/bulk-actions", {"action": "run_now", "ids": [str(s.scheduled.pk)]}),
}


#: Outside of the API, for end users; test_status_page has it.
PAGE_OF_USERS = {"task-status"}
SUBMITS = {"task-list", "task-bulk", "admin-task-list", "workflow-list"}
#: Their services write the record. test_audit_walk calls them; test_encryption the first, which changes nothing.
BY_SERVICES = {
    "task-decrypt",
    "queue",
    "policy",
    "limit-list",
    "limit",
    "limits-everything",
    "limits-pause",
    "limits-resume",
}


def test_every_address_of_the_api_that_changes_something_is_listed_here():
    own = {name for name in api_views() if not name.startswith(("worker", "internal", "key", "missing"))}
    assert own - SUBMITS - BY_SERVICES - PAGE_OF_USERS <= set(CALLS), "a new address: add a call that changes something"


def test_a_call_that_cannot_be_recorded_changes_nothing(staff, stage):
    """Change and record are one transaction, so a crash leaves both or neither."""
    staff.raise_request_exception = False
    before = state_of_everything()
    for name, call in CALLS.items():
        method, address, body = call(stage)
        with failing(audit, "record", ZeroDivisionError), suppress(ZeroDivisionError):
            getattr(staff, method)(f"/api/v1/{address}", body, content_type="application/json")
        assert state_of_everything() == before, name


def state_of_everything():
    models = (Task, DeadLetter, Queue, Operation)
    return [list(model.objects.order_by("pk").values()) for model in models]


def test_a_refused_call_leaves_no_record(staff):
    answer = staff.delete(f"/api/v1/tasks/{uuid.uuid4()}")
    assert answer.status_code == 404
    assert not AuditEntry.objects.exists()


def test_records_mask_secrets_and_expire(staff):
    from queue_app.services.control.audit import record  # noqa: PLC0415
    from queue_app.sql.upkeep import purge_audit  # noqa: PLC0415

    record("x", "y", ["z"], by="a", via="admin", before={"password": "hunter2"}, after={"api_token": "hunter2"})
    assert "hunter2" not in str(AuditEntry.objects.values().get())
    deep = [{"steps": [{"token": "hunter2", "parameters": {"x": "hunter2"}}, [{"result": "hunter2"}]]}]
    found = record("x", "y", ["z"], by="a", via="api", after={"request": deep, "bad": "a\x00\ud800"}, reason="\x00")
    found.refresh_from_db()
    assert "hunter2" not in str(vars(found))
    assert (found.after["bad"], found.reason) == ("a\\x00\\ud800", "\\x00")
    found.delete()
    assert purge_audit(60, 10) == 0
    assert purge_audit(-120, 10) == 1


def test_records_cannot_be_edited(staff):
    from queue_app.services.control.audit import record  # noqa: PLC0415

    entry = record("x", "y", ["z"], by="a", via="admin")
    assert staff.get(f"{ADMIN}auditentry/").status_code == 200
    assert staff.get(f"{ADMIN}auditentry/{entry.pk}/change/").status_code == 200
    assert staff.post(f"{ADMIN}auditentry/{entry.pk}/change/", {"by": "b"}).status_code == 403
    assert staff.post(f"{ADMIN}auditentry/{entry.pk}/delete/", {"post": "yes"}).status_code == 403
    assert not Operation.objects.exists()
