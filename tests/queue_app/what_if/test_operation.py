"""Simulations that staff request: a process of their own, progress, stop, a kept result, and applying it."""

import re
from datetime import datetime, timedelta

import pytest
from django.contrib.auth.models import Permission
from django.urls import reverse
from django.utils import timezone, translation

from queue_app.core.sentence import from_json
from queue_app.dashboard.labels import translate
from queue_app.exceptions import InvalidTaskData, OperationEnded
from queue_app.models import AuditEntry, Limit, Operation, PriorityPolicy, Queue
from queue_app.services.control.queues import apply
from queue_app.services.operations.request import cancel_operation
from queue_app.services.operations.run import advance, run_operations
from queue_app.what_if import operation as module, recorded, simulate as simulation
from queue_app.what_if.operation import SILENT, TRIES, carry_out, run_simulations, start_simulation
from queue_app.what_if.plan import Load, span
from queue_app.workers.scheduler import Scheduler
from tests.support.faults import failing
from tests.support.recorded import history, last_window
from tests.support.waiting import until

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
    until(lambda: Operation.objects.get(pk=operation.pk).state != "running", "its process ends", seconds=120)
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


def test_staff_stop_it(request_it, override):
    operation = request_it()
    override(module, SIGN=timedelta())
    cancel_operation(operation.pk, by="bob")
    with pytest.raises(OperationEnded):
        carry_out(operation.pk)
    operation.refresh_from_db()
    assert (operation.state, operation.ended_by, operation.result) == ("cancelled", "bob", None)


def test_an_error_of_the_program_ends_it_with_its_name(request_it):
    """Without that, two more processes would die, and the operation would say only that they died."""
    operation = request_it()
    with failing(simulation, "simulate", ZeroDivisionError), pytest.raises(ZeroDivisionError):
        carry_out(operation.pk)
    operation.refresh_from_db()
    assert operation.state == "stopped"
    assert operation.result["error"].startswith("ZeroDivisionError: ")


def test_it_gives_signs_of_life_and_can_be_stopped_while_it_reads(request_it, override):
    operation = request_it()
    override(module, SIGN=timedelta())
    override(recorded, REPORT=1)
    looks = [None, None, OperationEnded("stopped")]
    with (
        failing(recorded, "_notes", ZeroDivisionError),  # the reading does not come to its end
        failing(module, "_update", looks) as update,
        pytest.raises(OperationEnded),
    ):
        carry_out(operation.pk)
    assert [call.kwargs["changed"] for call in update.call_args_list] == [0, 0, 0]


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


def test_the_request_makes_no_tasks(engine):
    """A web process answers it; another process makes the tasks."""
    with failing(Load, "add"):
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
    assert "The simulation of the recorded period agrees with what happened" in shown
    assert "imports: " in shown
    assert 'aria-label="imports, with the changes: half wait' in shown, "the picture says what it shows"
    assert "Apply these limits and bands" in shown
    assert staff.post(page(operation, "apply"), {"reason": "As simulated."}).status_code == 302
    assert Queue.objects.get(pk="imports").max_concurrent == 4
    assert AuditEntry.objects.filter(target="queue", reason="As simulated.").exists()


def test_a_limit_and_a_period_are_chosen_by_fields(engine, staff):
    history(last_window(), tasks=20)
    form = staff.get(FORM).content.decode()
    assert '<option value="queue:imports">' in form
    typed = {"hours": 6, "limit": "queue:imprts", "max_concurrent": 4}
    assert "Did you mean &#x27;queue:imports&#x27;" in staff.post(FORM, typed).content.decode()
    until = {"until_0": "2026-01-02", "until_1": "03:00"}
    assert staff.post(FORM, typed | {"limit": "queue:imports", "slots": 8} | until).status_code == 302
    operation = Operation.objects.get()
    limits = {"queue:imports": {"max_concurrent": 4}}
    assert operation.arguments == {"limits": limits, "workers": [{"slots": 8}]}
    since, until = (datetime.fromisoformat(operation.filter[name]) for name in ("since", "until"))
    assert until - since == timedelta(hours=6)
    assert f"{until:%Y-%m-%d}" == "2026-01-02"


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
    assert "The simulation of the recorded period" not in text
    assert "Apply" not in text
    assert client.post(page(operation, "apply"), {}).status_code == 403
    user.user_permissions.add(Permission.objects.get(codename="view_queuestats"))
    text = client.get(page(operation)).content.decode()
    assert "The simulation of the recorded period" in text
    assert "Apply these" not in text, "it needs the permission for each change"
    assert client.post(page(operation, "apply"), {}).status_code == 403
    assert Queue.objects.get(pk="imports").max_concurrent == 2


def test_the_link_of_a_queue_fills_in_its_limit(engine, staff):
    history(last_window(), tasks=2)
    address = f"{FORM}?limit=queue:imports"
    assert address in staff.get(reverse("admin:queue_app_queue_change", args=["imports"])).content.decode()
    assert re.search(r'<input[^>]* name="limit" value="queue:imports"', staff.get(address).content.decode())


def test_notes_and_waits_are_kept_so_that_a_page_can_translate_them(request_it, staff):
    operation = request_it(scenario={"limits": {"queue:nothing": {"max_concurrent": 4}}})
    assert "outcome" not in staff.get(page(operation)).content.decode(), "a simulation that runs has no result yet"
    operation = carry_out(operation.pk)
    notes = [from_json(note) for note in Operation.objects.get().result["notes"]]
    assert {note.template for note in notes} >= {"%(name)s: no task of the simulation has this name."}
    assert "queue:nothing: no task of the simulation has this name." in staff.get(page(operation)).content.decode()
    with translation.override("de"):
        assert translate(span(8.9)) == "8,9 s"
