"""Simulations that staff request: a process of their own, progress, stop, a kept result, and applying it."""

import time
from datetime import timedelta

import pytest
from django.contrib.auth.models import Permission
from django.urls import reverse
from django.utils import timezone

from queue_app.exceptions import InvalidTaskData, OperationEnded
from queue_app.models import AuditEntry, Limit, Operation, PriorityPolicy, Queue
from queue_app.services.control.queues import apply
from queue_app.services.operations.request import cancel_operation
from queue_app.services.operations.run import advance, run_operations
from queue_app.what_if import operation as module, recorded, simulate as simulation
from queue_app.what_if.operation import SILENT, TRIES, carry_out, run_simulations, start_simulation
from queue_app.what_if.plan import Load
from queue_app.workers.scheduler import Scheduler
from tests.support.recorded import history, last_window

CHANGES = {"limits": {"queue:imports": {"max_concurrent": 4}}, "bands": {"low": {"promote_after_seconds": 120}}}
FORM = reverse("admin:queue_app_operation_what_if")


@pytest.fixture
def spawned(monkeypatch):
    """The operations whose processes would be started."""
    ids = []
    monkeypatch.setattr(module, "_spawn", ids.append)
    return ids


@pytest.fixture
def request_it(engine):
    history(last_window(), tasks=60)
    return lambda **given: start_simulation(given.pop("scenario", CHANGES), *last_window(), by="ada", **given)


def page(operation, name: str = "change") -> str:
    return reverse(f"admin:queue_app_operation_{name}", args=[operation.pk])


def test_it_runs_in_a_process_of_its_own_and_keeps_the_result(request_it, spawned):
    operation = request_it(reason="Imports are late.")
    assert run_operations() == 0, "operations on tasks leave it alone"
    assert advance(operation.id) == 0
    assert run_simulations() == 1
    assert spawned == [operation.pk]
    assert run_simulations() == 0, "its process is alive"
    carry_out(operation.pk)
    operation.refresh_from_db()
    assert (operation.state, operation.changed, operation.remaining) == ("done", 100, 0)
    assert operation.result["changed"]["waits"]["queue"]["imports"]["tasks"]
    assert operation.result["calibration"]["agrees"]
    assert run_simulations() == 0


def test_the_scheduler_starts_it_and_a_real_process_ends_it(request_it, process_env, monkeypatch):
    monkeypatch.setattr(module.os, "environ", process_env)
    operation = request_it()
    Scheduler().run_once()
    until = time.monotonic() + 120
    while operation.state == "running" and time.monotonic() < until:
        time.sleep(0.2)
        operation.refresh_from_db()
    assert operation.state == "done", operation.result
    [child] = module._children
    assert child.wait(timeout=60) == 0


def test_a_silent_process_is_replaced_and_at_last_given_up(request_it, spawned):
    operation = request_it()
    for tries in range(1, TRIES + 1):
        assert run_simulations() == 1
        operation.refresh_from_db()
        assert operation.result["tries"] == tries
        alive = timezone.now() - SILENT - timedelta(seconds=1)
        Operation.objects.update(result=operation.result | {"alive": alive.isoformat()})
    assert run_simulations() == 0
    operation.refresh_from_db()
    assert (operation.state, operation.result) == ("stopped", {"error": f"Its process died {TRIES} times."})


def test_staff_stop_it(request_it, monkeypatch):
    operation = request_it()
    monkeypatch.setattr(module, "SIGN", timedelta())
    cancel_operation(operation.pk, by="bob")
    with pytest.raises(OperationEnded):
        carry_out(operation.pk)
    operation.refresh_from_db()
    assert (operation.state, operation.ended_by, operation.result) == ("cancelled", "bob", None)


def test_an_error_of_the_program_ends_it_with_its_name(request_it, monkeypatch):
    """Without that, two more processes would die, and the operation would say only that they died."""
    operation = request_it()
    monkeypatch.setattr(simulation, "simulate", lambda *_args, **_given: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        carry_out(operation.pk)
    operation.refresh_from_db()
    assert operation.state == "stopped"
    assert operation.result["error"].startswith("ZeroDivisionError: ")


def test_it_gives_signs_of_life_and_can_be_stopped_while_it_reads(request_it, monkeypatch):
    operation = request_it()
    monkeypatch.setattr(module, "SIGN", timedelta())
    monkeypatch.setattr(recorded, "REPORT", 1)
    monkeypatch.setattr(recorded, "_notes", lambda *_args, **_given: 1 // 0)  # the reading does not come to its end
    looks = []

    def cancelled_at_the_third(*args, **values):
        looks.append(values["changed"])
        if len(looks) == 3:
            raise OperationEnded("stopped")

    monkeypatch.setattr(module, "_update", cancelled_at_the_third)
    with pytest.raises(OperationEnded):
        carry_out(operation.pk)
    assert looks == [0, 0, 0]


def test_a_window_without_tasks_ends_with_the_reason(engine):
    operation = start_simulation({}, *last_window(), by="ada")
    carry_out(operation.pk)
    operation.refresh_from_db()
    assert operation.state == "stopped"
    assert "No task ended in this window" in operation.result["error"]


def test_nonsense_is_refused_at_once(engine):
    with pytest.raises(InvalidTaskData, match="names no limit"):
        start_simulation({"limits": {"mail": {}}}, *last_window(), by="ada")
    assert not Operation.objects.exists()


def test_the_request_makes_no_tasks(engine, monkeypatch):
    """A web process answers it; another process makes the tasks."""
    monkeypatch.setattr(Load, "add", lambda *_: pytest.fail("it makes tasks"))
    assert start_simulation({"load": [{"count": 1_000_000}], "workers": [{}]}, *last_window(), by="ada").pk


def test_apply_writes_rows_and_the_audit_log(engine):
    Queue.objects.create(name="imports", max_concurrent=2)
    changes = {
        "queue:imports": {"max_concurrent": 4, "fair_by": "user"},
        "type:shop.export": {"max_concurrent": 6},
        "everything": {"max_concurrent": 50},
        "band:low": {"promote_after_seconds": 120},
    }
    apply(changes, by="ada", via="admin", reason="As simulated.")
    queue = Queue.objects.get(pk="imports")
    assert (queue.max_concurrent, queue.order) == (4, "fair")
    assert Limit.objects.get(scope="type", name="shop.export").max_concurrent == 6
    assert PriorityPolicy.objects.get(priority=3).promote_after_seconds == 120
    entries = AuditEntry.objects.filter(reason="As simulated.", by="ada")
    assert entries.count() == 4
    assert entries.get(target="queue").before == {"max_concurrent": 2, "fair_by": "user", "order": "fifo"}
    for wrong in ({"queue:imports": {"paused": True}}, {"band:low": {"max_concurrent": 1}}):
        with pytest.raises(InvalidTaskData):
            apply({"everything": {"max_concurrent": 1}} | wrong, by="ada", via="admin", reason="")


# -- the admin ---------------------------------------------------------------------


@pytest.fixture
def staff(admin_client):
    return admin_client


def test_staff_request_it_see_it_and_apply_it(engine, staff):
    history(last_window(), tasks=60)
    assert "What if?" in staff.get(reverse("admin:queue_app_operation_changelist")).content.decode()
    text = '[limits."queue:imports"]\nmax_concurrent = 4\n'
    assert staff.get(FORM).status_code == 200
    assert staff.post(FORM, {"hours": 6, "scenario": text, "reason": "Late."}).status_code == 302
    operation = Operation.objects.get()
    assert operation.arguments == {"limits": {"queue:imports": {"max_concurrent": 4}}}
    assert "data-tq-running" in staff.get(page(operation)).content.decode()
    carry_out(operation.pk)
    shown = staff.get(page(operation)).content.decode()
    assert "Calibration: the unchanged simulation agrees" in shown
    assert "imports: " in shown
    assert "Apply these limits and bands" in shown
    assert staff.post(page(operation, "apply"), {"reason": "As simulated."}).status_code == 302
    assert Queue.objects.get(pk="imports").max_concurrent == 4
    assert AuditEntry.objects.filter(target="queue", reason="As simulated.").exists()


@pytest.mark.parametrize("text", ["[limits", "{", '[limits."mail"]\nmax_concurrent = 4', "x = 1"])
def test_the_form_says_what_is_wrong(engine, staff, text):
    found = staff.post(FORM, {"hours": 24, "scenario": text})
    assert found.status_code == 200
    assert found.context["form"].errors["scenario"]


def test_only_who_may_see_statistics_sees_results(request_it, client, django_user_model):
    user = django_user_model.objects.create_user("eve", password="x", is_staff=True)
    client.force_login(user)
    assert client.get(FORM).status_code == 403
    user.user_permissions.add(Permission.objects.get(codename="view_operation"))
    operation = carry_out(request_it().pk)
    text = client.get(page(operation)).content.decode()
    assert "Calibration" not in text
    assert "Apply" not in text
    assert client.post(page(operation, "apply"), {}).status_code == 403
    user.user_permissions.add(Permission.objects.get(codename="view_queuestats"))
    text = client.get(page(operation)).content.decode()
    assert "Calibration" in text
    assert "Apply these" not in text, "it needs the permission for each change"
    assert client.post(page(operation, "apply"), {}).status_code == 403
    assert Queue.objects.get(pk="imports").max_concurrent == 2
