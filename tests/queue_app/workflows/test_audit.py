"""Steering is recorded by the service, wherever it is called from; test_audit_walk counts the records of interfaces."""

import pytest

from queue_app import Workflow, signal
from queue_app.exceptions import InvalidTransition
from queue_app.models import AuditEntry
from queue_app.workflows.read import WorkflowUpkeep
from queue_app.workflows.steer import (
    cancel_workflow,
    pause_workflow,
    reprioritise_workflow,
    resume_workflow,
    retry_workflow,
)
from tests.queue_app.workflows.test_upkeep import LONG_AGO, Row as Stored
from tests.workers.flow_tasks import node


@pytest.fixture
def flow(engine):
    flow = Workflow("audited")
    flow.add(node, "one")
    flow.enqueue()
    return flow


def test_each_command_leaves_one_record_with_the_actor_and_the_reason(flow):
    pause_workflow(flow.id, by="ina", reason="stock")
    resume_workflow(flow.id, by="ina", reason="stock is back")
    reprioritise_workflow(flow.id, "high", by="ina", reason="vip")
    cancel_workflow(flow.id, by="ina", reason="gone")
    retry_workflow(flow.id, by="ina", reason="here again")
    found = AuditEntry.objects.order_by("id").values_list("action", "target", "target_id", "by", "via", "reason")
    assert list(found) == [
        (f"workflow.{action}", "workflow", str(flow.id), "ina", "code", reason)
        for action, reason in [
            ("pause", "stock"),
            ("resume", "stock is back"),
            ("reprioritise", "vip"),
            ("cancel", "gone"),
            ("retry", "here again"),
        ]
    ]
    assert AuditEntry.objects.get(action="workflow.reprioritise").after == {"tasks": 1, "priority": "high"}


def test_a_refused_command_leaves_none_and_neither_does_the_deadline(flow):
    Stored.objects.update(deadline=LONG_AGO)
    WorkflowUpkeep().run_once()
    assert cancel_workflow(flow.id, by="ina") == 0
    with pytest.raises(InvalidTransition):
        pause_workflow(flow.id, by="ina")
    assert not AuditEntry.objects.exists()


def test_a_signal_in_a_persons_name_is_recorded_and_one_of_a_program_is_not(flow):
    signal(flow, "approved", {"secret": 1}, by="ina")
    signal(flow, "approved")
    entry = AuditEntry.objects.get()
    assert (entry.action, entry.target_id, entry.by) == ("workflow.signal", str(flow.id), "ina")
    assert entry.after["signal"] == "approved"
    assert "1" not in str(entry.after["payload"]), "payloads are masked"
