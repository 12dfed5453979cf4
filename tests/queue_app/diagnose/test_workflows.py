"""The doctor reports a workflow that a failed task has held for an hour, and not one that was held for less."""

from datetime import timedelta

from django.utils import timezone

from queue_app import Workflow
from queue_app.core.reasons import Level
from queue_app.diagnose.work import check_workflows
from queue_app.models import Workflow as Flow
from queue_app.registry import type_of
from queue_app.services.lifecycle.finish import finish
from tests.support.engine import failed, take
from tests.workers import chores


def test_a_workflow_that_a_failed_task_holds(engine, django_capture_on_commit_callbacks):
    flow = Workflow("ship order 7")
    pay = flow.add(chores.echo.using(max_retries=0), 1)
    flow.add(chores.echo, 2, after=[pay])
    with django_capture_on_commit_callbacks(execute=True):
        flow.enqueue()
    with django_capture_on_commit_callbacks(execute=True):
        finish([failed(task) for task in take(engine.worker(type_of(chores.echo)))])
    levels = []
    for minutes in (0, 59, 61):
        Flow.objects.update(held_at=timezone.now() - timedelta(minutes=minutes))
        (found,) = check_workflows()
        levels.append(found.level)
    assert levels == [Level.OK, Level.OK, Level.WARN]
    assert f"1 held for more than an hour: ship order 7 {flow.id} for 3,66" in found.message
    assert found.message.endswith("by echo (dead letter)")
    assert "workflow retry" in found.hint
