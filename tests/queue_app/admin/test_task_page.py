"""The page of a task: its state, its arguments, what failed, and why it waits."""

import uuid
from datetime import timedelta

import pytest
from django.contrib.auth.models import Permission
from django.urls import reverse
from django.utils import timezone

from queue_app import registry
from queue_app.core.states import WAITING, Status
from queue_app.models import Queue, Schedule, ScheduleTick, StepResult, Task, TaskLog, TaskProgress, TaskStack, Worker
from queue_app.schedules.edit import create_schedule
from queue_app.services import cancel
from queue_app.services.repair.rebuild import rebuild
from queue_app.services.upkeep.maintenance import purge
from tests.support.factories import AttemptFactory, DeadLetterFactory, move
from tests.support.faults import failing
from tests.support.pages import text_of, url
from tests.workers import chores


@pytest.mark.parametrize("state", list(Status))
def test_task_page_in_every_state(state, staff, make_task, run_task, end_task):
    task = make_task(run_after=timezone.now() + timedelta(hours=1) if state is Status.SCHEDULED else None)
    if state is Status.EXECUTING:
        task = run_task(task)
    elif state is Status.BLOCKED:
        task = move(task, state, queued_at=None)
    elif state not in WAITING:
        task = end_task(task, state, error="no luck" if state in (Status.FAILED, Status.DEAD_LETTER) else None)
    page = text_of(staff.get(url(Task, "change", task.pk)))
    assert f"tq-status-{state}" in page
    assert ("Cancel task" in page) == (state in WAITING)
    assert ("Ask to stop" in page) == (state is Status.EXECUTING)
    assert ("Change priority" in page) == (state in WAITING)
    assert f"tq-status-{state}" in text_of(staff.get(url(Task, "changelist"), {"status": state}))


def test_task_page_shows_everything(staff, make_task, end_task, make_worker):
    worker = make_worker("worker-7")
    task = make_task(
        parameters={"order": 17, "text": "grüße"}, args=[1, "two"], user="alice", idempotency_key="key-1", timeout=42.0
    )
    task = end_task(task, result={"sent": True}, error="first try failed", worker=worker)
    page = text_of(staff.get(url(Task, "change", task.pk)))
    for part in (
        str(task.pk), "shop.tasks.send_mail", "alice", "key-1", "worker-7", "grüße",
        '&quot;order&quot;</span>: <span class="tq-json-value">17',
        "&quot;two&quot;",
        '&quot;sent&quot;</span>: <span class="tq-json-value">true',
        "first try failed", "set for this task", "policy of normal",
        url(Worker, "change", worker.pk), url(Queue, "change", "default"), "42 s", "Traceback", "<details", "Completed",
    ):  # fmt: skip
        assert part in page


def test_task_page_tells_sleep_from_waiting(staff, make_task, end_task):
    """A task that slept for three days has not waited for a worker that long."""
    task, now = make_task(), timezone.now()
    end_task(task)
    day = timedelta(days=1)
    Task.objects.filter(pk=task.pk).update(created_at=now - 4 * day, started_at=now - day / 2, finished_at=now)
    StepResult.objects.create(
        task=task, name="sleep", position=1, kind="sleep", attempt=1, stored_at=now - 4 * day + day / 4, until=now - day
    )
    page = text_of(staff.get(url(Task, "change", task.pk)))
    assert "waited 18 h, slept 2 d 18 h, ran 12 h" in page
    assert 'aria-label="waited 6 h; slept 2 d 18 h; waited 12 h; ran 12 h"' in page


def test_task_page_tells_of_its_dead_letter(client_of, staff, make_task, end_task):
    task = end_task(make_task(), "dead_letter")
    told = 'id="tq-letter"'
    assert told not in text_of(staff.get(url(Task, "change", task.pk)))
    DeadLetterFactory(task_id=task.pk)
    assert told in text_of(staff.get(url(Task, "change", task.pk)))
    assert told not in text_of(client_of("viewer").get(url(Task, "change", task.pk)))


def test_task_page_names_its_schedule_and_latest_changes(client_of, staff, make_task):
    task = make_task()
    schedule = create_schedule("nightly", {"task_type": f"{chores.__name__}.echo", "args": [1], "cron": "0 3 * * *"})
    ScheduleTick.objects.create(
        schedule=schedule, instant=timezone.now(), kind="due", at=timezone.now(), task_id=task.pk
    )
    staff.post(url(Task, "priority", task.pk), {"priority": "high", "reason": "the director asked"})
    page = text_of(staff.get(url(Task, "change", task.pk)))
    assert url(Schedule, "change", schedule.pk) in page
    assert "the director asked" in page
    page = text_of(client_of("viewer").get(url(Task, "change", task.pk)))
    assert url(Schedule, "change", schedule.pk) not in page
    assert "the director asked" not in page, "without view_auditentry"


def test_task_page_names_similar_failures_and_attempts_that_failed_alike(staff, make_task):
    now = timezone.now()
    one, other, foreign = (move(make_task(), "dead_letter") for _ in range(3))
    for task, cause in ((one, "same"), (other, "same"), (foreign, "another")):
        DeadLetterFactory(task=task, fingerprint=cause)
    for attempt, line in ((1, 7), (2, 7), (3, 9)):
        AttemptFactory(
            task=one, attempt=attempt, started_at=now, finished_at=now, traceback=f'File "shop.py", line {line}',
            exception_class="ValueError", message="no luck",
        )  # fmt: skip
    page = text_of(staff.get(url(Task, "change", one.pk)))
    similar = page.split("Similar failures")[1].split("</details>")[0]
    assert url(Task, "change", other.pk) in similar
    assert str(foreign.pk) not in similar
    assert page.count("the same as attempt") == 1
    assert page.count('<details class="tq-attempt" open>') == 2, "the two that differ"
    assert "the same as attempt 2" in page
    assert "Similar failures" not in text_of(staff.get(url(Task, "change", foreign.pk)))


def test_position_in_the_queue(staff, make_task, make_worker):
    rebuild()
    first, second = make_task(), make_task()
    assert "First in its queue once it can start." in text_of(staff.get(url(Task, "change", first.pk))), "no worker"
    make_worker()
    assert "Next to run in its queue." in text_of(staff.get(url(Task, "change", first.pk)))
    assert "Position 2 in its queue." in text_of(staff.get(url(Task, "change", second.pk)))


def test_history_page_of_a_task(staff, make_task):
    task = make_task()
    cancel(task.pk)
    assert staff.get(url(Task, "history", task.pk)).status_code == 200


def test_the_page_works_if_the_task_module_cannot_be_imported(staff, make_task):
    task = make_task(args=["positional"])
    with failing(registry, "get", SyntaxError("in a user's tasks.py")):
        assert "positional" in text_of(staff.get(url(Task, "change", task.pk)))


# -- its live part ---------------------------------------------------------------------------------------------------


def test_the_stack_of_a_running_task_or_why_there_is_none(staff, make_task, make_worker, run_task):
    worker = make_worker(heartbeat_seconds=10)
    task = run_task(make_task(parameters={"password": "hunter2"}), worker)
    page, ask = url(Task, "change", task.pk), url(Task, "stack", task.pk)
    asked = TaskStack.objects.filter(pk=task.pk)
    staff.post(ask)
    assert "Asked. The worker answers with a heartbeat, in 10 s at most." in text_of(staff.get(page))
    asked.update(asked_at=timezone.now() - timedelta(seconds=21))
    assert "has not answered for two heartbeats" in text_of(staff.get(page))
    Worker.objects.filter(pk=worker.pk).update(status="dead")
    assert "The worker has ended." in text_of(staff.get(page))
    asked.update(answered_at=timezone.now(), text='shop.py:1 pay\n    pay("hunter2", token="zq-token")')
    shown = text_of(staff.get(page))
    assert "shop.py:1 pay" in shown
    assert "hunter2" not in shown
    assert "zq-token" not in shown
    asked.update(text="silent")
    assert "it is stopped or frozen" in text_of(staff.get(page))
    asked.update(asked_at=timezone.now() - timedelta(minutes=11))
    assert "Where it is now" not in text_of(staff.get(page)), "an answer is shown for some minutes"
    purge()
    assert not asked.exists()
    waiting = make_task()
    refused = staff.post(url(Task, "stack", waiting.pk), follow=True)
    assert "Only a running task has a stack; this one is queued." in text_of(refused)


def test_progress_and_log_lines_of_a_running_task(staff, client, django_user_model, make_task):
    task = make_task()
    now = timezone.now()
    runs = {"worker_id": uuid.uuid4(), "attempt": 1, "started_at": now, "deadline": now + timedelta(hours=1)}
    Task.objects.filter(pk=task.pk).update(status="executing", **runs)
    address = reverse("admin:queue_app_task_live", args=[task.pk])
    page = reverse("admin:queue_app_task_change", args=[task.pk])
    assert f'data-live="{address}"' in staff.get(page).content.decode()
    TaskProgress.objects.create(task_id=task.pk, attempt=1, fraction=0.4, message="<b>half", updated_at=timezone.now())
    TaskLog.objects.create(task_id=task.pk, attempt=1, lines="password=hunter2\n<script>", updated_at=timezone.now())
    answer = staff.get(address)
    text = answer.content.decode()
    assert answer["X-Task-Status"] == "executing"
    assert "no-store" in answer["Cache-Control"]
    assert 'value="0.400"' in text
    assert "&lt;b&gt;half" in text
    assert "&lt;script&gt;" in text
    assert "hunter2" not in text
    Task.objects.filter(pk=task.pk).update(status="completed", finished_at=now, deadline=None)
    assert staff.get(address)["X-Task-Status"] == "completed"
    assert "data-live" not in staff.get(page).content.decode()
    assert staff.get(reverse("admin:queue_app_task_live", args=[uuid.uuid4()])).status_code == 404
    assert client.get(address).status_code == 302
    other = django_user_model.objects.create_user("eve", password="x", is_staff=True)
    other.user_permissions.add(Permission.objects.get(codename="view_task"))
    client.force_login(other)
    assert client.get(address).status_code == 403, "lines may hold what only some may see"
