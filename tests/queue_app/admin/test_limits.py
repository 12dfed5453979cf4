"""Limits in the admin: edits with the checks of the API, pause and resume."""

import re
from datetime import timedelta

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission
from django.test import Client
from django.urls import reverse
from django.utils import timezone
from django.utils.html import strip_tags

from queue_app.adaptive.adapt import adapt_limits
from queue_app.core.priorities import Band
from queue_app.models import AuditEntry, Limit, LimitStep, PriorityPolicy, Queue, RuntimeSettings
from queue_app.services import pause
from tests.queue_app.admin.test_actions import QUEUES
from tests.support.factories import LimitFactory, StaffFactory
from tests.support.pages import messages_of, select, words_of

LIST = reverse("admin:queue_app_limit_changelist")
ADD = reverse("admin:queue_app_limit_add")
SETTINGS = "admin:queue_app_runtimesettings"


def text_of(response) -> str:
    return response.content.decode()


def fields(**given) -> dict:
    names = ("max_concurrent", "rate_count", "rate_seconds", "rate_burst", "min_delay_seconds")
    return dict.fromkeys((*names, "throttled_until_0", "throttled_until_1", "reason"), "") | given


def faults(response) -> set[str]:
    assert response.status_code == 200, "the form comes back"
    return set(response.context["adminform"].form.errors)


def test_a_limit_is_added_edited_and_deleted(staff):
    assert staff.post(ADD, fields(scope="key", name="customer", max_concurrent=3)).status_code == 302
    limit = Limit.objects.get()
    page = reverse("admin:queue_app_limit_change", args=[limit.pk])
    assert "customer" in text_of(staff.get(LIST))
    staff.post(page, fields(rate_count=5, rate_seconds=60, reason="The contract says so."))
    limit.refresh_from_db()
    assert (limit.max_concurrent, limit.rate_count, limit.rate_seconds) == (None, 5, 60)
    assert AuditEntry.objects.filter(reason="The contract says so.").exists()
    assert faults(staff.post(ADD, fields(scope="key", name="customer"))) == {"__all__"}
    staff.post(reverse("admin:queue_app_limit_delete", args=[limit.pk]), {"post": "yes"})
    assert not Limit.objects.exists()


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"scope": "planet"}, {"scope"}),
        ({"name": ""}, {"name"}),
        ({"max_concurrent": 0}, {"max_concurrent"}),
        ({"rate_count": 5}, {"rate_seconds"}),
        ({"rate_count": 5, "rate_seconds": "nan"}, {"rate_seconds"}),
        ({"rate_count": 10, "rate_seconds": 60, "min_delay_seconds": 7}, {"min_delay_seconds"}),
        ({"throttled_until_0": "yesterday"}, {"throttled_until"}),
    ],
)
def test_invalid_limits(staff, given, named):
    found = faults(staff.post(ADD, fields(scope="type", name="shop.mail") | given))
    assert found >= named
    assert not Limit.objects.exists()


def test_pause_and_resume_by_button_and_by_list(staff):
    limit = LimitFactory()
    staff.post(reverse("admin:queue_app_limit_pause", args=[limit.pk]), {"reason": "Complaints", "seconds": "900"})
    limit.refresh_from_db()
    assert (limit.paused, limit.paused_by, limit.paused_reason) == (True, "superuser", "Complaints")
    assert limit.resume_at is not None
    page = text_of(staff.get(reverse("admin:queue_app_limit_change", args=[limit.pk])))
    assert "Resume" in page
    assert "Complaints" in page
    staff.post(reverse("admin:queue_app_limit_resume", args=[limit.pk]))
    limit.refresh_from_db()
    assert not limit.paused
    for action, wanted in [("pause_selected", True), ("resume_selected", False)]:
        staff.post(LIST, {"action": action, "_selected_action": [limit.pk], "reason": "", "seconds": ""})
        limit.refresh_from_db()
        assert limit.paused is wanted
    assert AuditEntry.objects.filter(target="limit").count() == 4


def test_pause_everything_on_the_settings_page(staff):
    staff.post(reverse(f"{SETTINGS}_pause", args=[1]), {"reason": "Fire", "seconds": ""})
    settings = RuntimeSettings.objects.get()
    assert (settings.paused, settings.paused_reason) == (True, "Fire")
    assert "Fire" in text_of(staff.get(reverse(f"{SETTINGS}_change", args=[1])))
    page = {"max_concurrent": "7", "max_length": "10", "max_pending_per_user": "", "reason": ""}
    staff.post(reverse(f"{SETTINGS}_change", args=[1]), page)
    settings.refresh_from_db()
    assert (settings.max_concurrent, settings.paused) == (7, True), "an edit does not end the pause"
    staff.post(reverse(f"{SETTINGS}_resume", args=[1]))
    settings.refresh_from_db()
    assert not settings.paused


def test_pausing_needs_its_permission_and_a_post():
    limit = LimitFactory(name="t")
    user = StaffFactory(permissions=["view_limit"])
    client = Client()
    client.force_login(user)
    address = reverse("admin:queue_app_limit_pause", args=[limit.pk])
    assert client.get(address).status_code == 405
    assert client.post(address).status_code == 403
    user.user_permissions.add(Permission.objects.get(content_type__app_label="queue_app", codename="pause_limit"))
    assert client.post(address).status_code == 302
    limit.refresh_from_db()
    assert limit.paused


def test_the_list_tells_what_runs_and_waits_behind_each_limit(staff, make_task, make_worker, run_task):
    for scope, name, cap in (("type", "shop.pay", 1), ("key", "customer", 2), ("key", "customer:9", 5)):
        LimitFactory(scope=scope, name=name, max_concurrent=cap)
    worker = make_worker(task_types=["shop.pay", "shop.pack"])
    for options in (
        {"task_type": "shop.pay"},
        {"task_type": "shop.pack", "concurrency_key": "customer:1"},
        {"task_type": "shop.pack", "concurrency_key": "customer:1"},
        {"task_type": "shop.pack", "concurrency_key": "customer:2"},
        {"task_type": "shop.pack", "concurrency_key": "customer:9"},
    ):
        run_task(make_task(**options), worker)
    make_task(task_type="shop.pay")
    make_task(task_type="shop.pay")
    rows = {
        re.search(r"(shop\.pay|customer:9|customer)", row)[0]: cells_of(row)
        for row in re.findall(r"<tr>.*?</tr>", text_of(staff.get(LIST)), re.DOTALL)
        if "field-waiting" in row
    }
    assert rows["shop.pay"] == ("1 of 1 at the limit", "2 under 1 s")
    assert rows["customer"] == ("3 at most 2 of one key", "0")
    assert rows["customer:9"] == ("1 of 5", "0"), "a key with a limit of its own is not its family's"


@pytest.mark.parametrize(
    ("count", "seconds", "words"),
    [
        (1, 3600, "1 an hour"), (100, 60, "100 a minute"), (5, 30, "5 per 30 s"), (3, 1, "3 a second"),
        (1, 86_400, "1 a day"), (2000, 7200, "2,000 per 2 h"),
    ],
)  # fmt: skip
def test_a_rate_is_said_in_words(staff, make_task, make_worker, count, seconds, words):
    Limit.objects.create(scope="type", name="shop.tasks.send_mail", rate_count=count, rate_seconds=seconds)
    make_worker()
    make_task()
    assert f" {words} " in words_of(staff.get(LIST))
    assert f"· {words} " in words_of(staff.get("/admin/queue_app/taskstats/type/shop.tasks.send_mail/"))
    assert f"has a rate limit: {words}." in words_of(staff.get("/admin/queue_app/"))


def cells_of(row: str) -> tuple[str, str]:
    running, waiting = (
        " ".join(strip_tags(re.search(f'field-{name}">(.*?)</td>', row, re.DOTALL)[1].replace("<br>", " ")).split())
        for name in ("running", "waiting")
    )
    return running, waiting


# -- adaptive limits -------------------------------------------------------------------------------------------------


def page(row) -> str:
    return reverse(f"admin:queue_app_{row._meta.model_name}_change", args=[row.pk])


def steps(gate: str, *values: int) -> None:
    """Write a history of one value a minute."""
    now = timezone.now()
    for number, value in enumerate(values):
        at = now - timedelta(minutes=len(values) - number)
        LimitStep.objects.create(
            gate=gate,
            at=at,
            stepped_at=at + timedelta(minutes=1),
            value=value,
            running=value - 1,
            run_p50=0.2 * value,
            failures=number % 2,
            cause="slow",
            reason=f"Run times are {value}.0 times their baseline.",
            since=at,
        )


@pytest.mark.parametrize("kind", ["queue", "type", "everything"])
def test_the_page_shows_value_reason_and_history(staff, kind):
    values = {"adaptive": "gradient2", "min_concurrent": 2, "max_concurrent": 40, "current_concurrent": 12}
    if kind == "queue":
        row = Queue.objects.create(name="mail", **values)
    elif kind == "type":
        row = Limit.objects.create(scope="type", name="<b>mail</b>", **values)
    else:
        row, _ = RuntimeSettings.objects.update_or_create(pk=1, defaults=values)
    steps(row.gate.index_name, 8, 10, 10, 12)
    found = staff.get(page(row))
    text = found.content.decode()
    assert "12 of at most 40 just now, since" in text
    assert "Run times are 12.0 times their baseline." in text
    assert [step.value for step, _reason in found.context["changes"]] == [12, 10, 8]
    assert text.count("<polyline") == 3
    assert "<b>mail" not in text
    points = [tuple(map(float, point.split(","))) for point in found.context["chart"].limit.split()]
    assert all(0 <= x <= 600 and 0 <= y <= 120 for x, y in points)
    assert min(y for _, y in points) == 0, "the highest value is at the top"


def test_the_list_shows_the_value_in_force(staff):
    values = {"adaptive": "gradient2", "max_concurrent": 40, "current_concurrent": 12}
    Limit.objects.create(scope="type", name="shop.tasks.export", **values)
    Limit.objects.create(scope="key", name="customer", max_concurrent=3)
    cells = re.findall(r'class="field-running">(.*?)</td>', text_of(staff.get(LIST)))
    assert [strip_tags(cell) for cell in cells] == ["0 of 3", "0 of 12adapts itself"]


def test_a_fixed_limit_has_no_chart(staff):
    queue = Queue.objects.create(name="mail", max_concurrent=5)
    steps("q:mail", 8)
    assert "tq-adaptive" not in staff.get(page(queue)).content.decode()


def test_before_the_first_step_the_page_says_so(staff):
    queue = Queue.objects.create(name="mail", max_concurrent=5, adaptive="gradient2")
    assert "5 of at most 5 just now: no scheduler has judged it yet." in staff.get(page(queue)).content.decode()


def test_the_form_of_a_limit_with_the_name_of_a_former_algorithm_keeps_it_adaptive(staff):
    queue = Queue.objects.create(name="mail", max_concurrent=5, adaptive="vegas")
    form = staff.get(page(queue)).context["adminform"].form
    assert form["adaptive"].value() == "gradient2"
    assert '<option value="gradient2" selected>' in str(form["adaptive"])


def test_staff_make_a_limit_adaptive_and_fixed_again(staff):
    queue = Queue.objects.create(name="mail", max_concurrent=5)
    form = {"adaptive": "gradient2", "min_concurrent": 2, "max_concurrent": 30, "order": "fifo", "fair_by": "user"}
    form |= {"fair_weights": "{}", "probe": "cpu", "varies_by": "", "reason": "The bank is slow."}
    assert staff.post(page(queue), form).status_code == 302
    adapt_limits()
    queue.refresh_from_db()
    assert (queue.cap, queue.probe) == (2, "cpu")
    assert staff.post(page(queue), form | {"adaptive": "", "min_concurrent": "", "probe": ""}).status_code == 302
    queue.refresh_from_db()
    assert queue.cap == 30


# -- queues and policies ---------------------------------------------------------------------------------------------


QUEUE_FORM = {"order": "fifo", "fair_by": "user", "fair_weights": "{}"}


# -- queues ---------------------------------------------------------------------------


def test_pause_and_resume_selected(staff):
    queues = [Queue.objects.get(pk="default"), Queue.objects.create(name="with_under.score")]
    response = select(staff, QUEUES, "pause_selected", queues, reason="printer on fire")
    assert messages_of(response) == ["Paused: 2."]
    for queue in queues:
        queue.refresh_from_db()
        assert (queue.paused, queue.paused_by, queue.paused_reason) == (True, "superuser", "printer on fire")
    assert messages_of(select(staff, QUEUES, "pause_selected", queues))[-1] == "Skipped 2 (already paused)."
    assert messages_of(select(staff, QUEUES, "resume_selected", queues[:1]))[-1] == "Resumed: 1."
    log = LogEntry.objects.filter(object_id="default").order_by("id").values_list("change_message", flat=True)
    assert list(log) == ["Paused: printer on fire", "Resumed: because"]


def test_pause_and_resume_buttons(staff):
    name = Queue.objects.create(name="with_under.score").name
    address = reverse("admin:queue_app_queue_pause", args=["with_5Funder.score"])
    page = staff.post(address, {"reason": "r" * 201}, follow=True).content.decode()
    assert "the limit is 200" in page
    page = staff.post(address, {"reason": "maintenance", "seconds": "5"}, follow=True).content.decode()
    assert "the length of the pause is unknown" in page
    assert not Queue.objects.get(pk=name).paused
    page = staff.post(address, {"reason": "maintenance", "seconds": "3600"}, follow=True).content.decode()
    assert "maintenance" in page
    assert "resumes" in page
    assert Queue.objects.get(pk=name).resume_at is not None
    assert "Resume" in page
    assert Queue.objects.get(pk=name).paused
    page = staff.post(address, {}, follow=True).content.decode()
    assert "paused already" in page
    staff.post(reverse("admin:queue_app_queue_resume", args=["with_5Funder.score"]))
    assert not Queue.objects.get(pk=name).paused
    assert staff.post(f"{QUEUES}none/pause/").status_code == 302


def test_limits_are_edited_in_the_list_and_on_the_page(staff, committed):
    form = {"form-TOTAL_FORMS": 1, "form-INITIAL_FORMS": 1, "form-0-name": "default", "_save": "Save"}
    staff.post(QUEUES, form | {"form-0-max_concurrent": "7"})
    assert Queue.objects.get(pk="default").max_concurrent == 7
    assert staff.post(QUEUES, form | {"form-0-max_concurrent": "0"}).status_code == 200
    assert Queue.objects.get(pk="default").max_concurrent == 7
    staff.post(f"{QUEUES}default/change/", QUEUE_FORM | {"description": "all the rest", "reason": "quiet days"})
    queue = Queue.objects.get(pk="default")
    assert (queue.max_concurrent, queue.description) == (None, "all the rest")
    entry = AuditEntry.objects.filter(action="queue.edit").first()
    assert (entry.before["max_concurrent"], entry.after["max_concurrent"], entry.reason) == (7, None, "quiet days")
    page = staff.get(f"{QUEUES}default/change/").content.decode()
    assert "tasks at the same time: 7 → -" in page
    assert "quiet days" in page
    bad = staff.post(f"{QUEUES}default/change/", QUEUE_FORM | {"rate_count": "5"}).content.decode()
    assert "Enter the period in seconds" in bad


def test_an_edit_does_not_undo_a_concurrent_pause(staff, monkeypatch):
    from queue_app.admin.queue import QueueAdmin  # noqa: PLC0415

    real = QueueAdmin.save_model

    def pause_first(self, request, obj, form, change):
        pause("default", by="another user", reason="now")
        real(self, request, obj, form, change)

    monkeypatch.setattr(QueueAdmin, "save_model", pause_first)
    staff.post(f"{QUEUES}default/change/", QUEUE_FORM | {"description": "new", "max_concurrent": "3"})
    queue = Queue.objects.get(pk="default")
    assert (queue.paused, queue.paused_by, queue.max_concurrent) == (True, "another user", 3)


@pytest.mark.parametrize("how", ["page", "bulk"])
def test_a_queue_with_pending_tasks_is_not_deleted(how, staff, make_task, end_task):
    make_task(queue="busy")
    end_task(make_task(queue="quiet"))

    def delete(name):
        if how == "page":
            return staff.post(f"{QUEUES}{name}/delete/", {"post": "yes"})
        return select(staff, QUEUES, "delete_selected", [Queue.objects.get(pk=name)], post="yes")

    assert "pending tasks" in delete("busy").content.decode()
    delete("quiet")
    names = set(Queue.objects.values_list("name", flat=True))
    assert "busy" in names
    assert "quiet" not in names


def test_a_queue_is_added_once_and_keeps_its_name(staff):
    assert staff.post(f"{QUEUES}add/", QUEUE_FORM | {"name": "new", "max_concurrent": "2"}).status_code == 302
    assert staff.post(f"{QUEUES}add/", QUEUE_FORM | {"name": "not a name"}).status_code == 200
    staff.post(f"{QUEUES}new/change/", QUEUE_FORM | {"name": "renamed", "description": "x", "max_concurrent": "2"})
    assert set(Queue.objects.values_list("name", flat=True)) == {"default", "new"}


# -- policies -------------------------------------------------------------------------


def test_policies_are_edited(staff):
    page = "/admin/queue_app/prioritypolicy/0/change/"
    data = {"max_retries": "9", "timeout_seconds": "30", "promote_after_seconds": ""}
    assert staff.post(page, data).status_code == 302
    assert PriorityPolicy.objects.get(pk=0).max_retries == 9
    assert staff.post(page, data | {"timeout_seconds": "0"}).status_code == 200
    limits = {"max_concurrent": "12", "max_length": "5000"}
    assert staff.post("/admin/queue_app/runtimesettings/1/change/", limits).status_code == 302
    assert RuntimeSettings.objects.get().max_concurrent == 12
    assert staff.post("/admin/queue_app/runtimesettings/1/delete/", {"post": "yes"}).status_code == 403
    assert staff.post("/admin/queue_app/indexgeneration/1/change/", {"number": "5"}).status_code == 403


# Times with units.


@pytest.mark.parametrize(
    ("typed", "seconds"), [("7 days", 604_800), ("1.5 h", 5_400), ("10 min", 600), ("30", 30), ("250 ms", 0.25)]
)
def test_staff_write_times_with_units_and_read_them_so(staff, typed, seconds):
    page = reverse("admin:queue_app_prioritypolicy_change", args=[Band.NORMAL.value])
    data = {"max_retries": "3", "timeout_seconds": typed, "promote_after_seconds": "", "target_seconds": ""}
    assert staff.post(page, data).status_code == 302
    assert PriorityPolicy.objects.get(pk=Band.NORMAL).timeout_seconds == seconds
    shown = re.search(r'name="timeout_seconds" value="([^"]*)"', staff.get(page).content.decode())[1]
    staff.post(page, data | {"timeout_seconds": shown})
    assert PriorityPolicy.objects.get(pk=Band.NORMAL).timeout_seconds == seconds, "what is shown means the same"
    assert typed in {"30", "1.5 h", "250 ms"} or shown == typed


def test_a_time_that_did_not_change_is_no_change(staff):
    page = reverse("admin:queue_app_prioritypolicy_change", args=[Band.NORMAL.value])
    found = PriorityPolicy.objects.get(pk=Band.NORMAL)
    data = {"max_retries": found.max_retries + 1, "timeout_seconds": f"{found.timeout_seconds / 60:g} min"}
    staff.post(page, data | {"promote_after_seconds": found.promote_after_seconds or "", "target_seconds": ""})
    entry = AuditEntry.objects.get(action="prioritypolicy.edit")
    assert "timeout_seconds" not in entry.after


@pytest.mark.parametrize("typed", ["7 parsecs", "soon", "nan"])
def test_an_unknown_unit_is_refused(staff, typed):
    page = reverse("admin:queue_app_prioritypolicy_change", args=[Band.NORMAL.value])
    data = {"max_retries": "3", "timeout_seconds": typed, "promote_after_seconds": "", "target_seconds": ""}
    assert "Enter a number" in staff.post(page, data).content.decode()


@pytest.mark.parametrize(
    "path", ["prioritypolicy/2/change/", "queue/mail/change/?tab=settings", "limit/add/", "runtimesettings/1/change/"]
)
def test_each_setting_says_what_it_changes(staff, path):
    Queue.objects.create(name="mail")
    form = staff.get(f"/admin/queue_app/{path}").context["adminform"].form
    assert [name for name, field in form.fields.items() if not field.help_text] == []


@pytest.mark.parametrize(
    "path", ["queue/", "queue/mail/change/?tab=settings", "limit/", "limit/add/", "runtimesettings/1/change/"]
)
def test_settings_are_named_as_people_say_it(staff, path):
    Queue.objects.create(name="mail")
    LimitFactory(max_concurrent=3)
    page = text_of(staff.get(f"/admin/queue_app/{path}")).lower()
    assert "tasks at the same time" in page
    for name in ("max concurrent", "rate burst", "fair by", "expire eagerly", "scope:", "max length", "max pending"):
        assert name not in page, name


def test_the_settings_say_what_an_empty_field_means(staff):
    page = text_of(staff.get("/admin/queue_app/runtimesettings/1/change/"))
    assert "Empty: as in the settings of the project. These say 10,000." in page


def test_no_page_asks_for_two_reasons_at_once(staff):
    """The reason of a pause is asked for by its button."""
    Queue.objects.create(name="mail")
    limit, queue, settings = (
        text_of(staff.get(f"/admin/queue_app/{path}"))
        for path in (f"limit/{LimitFactory().pk}/change/", "queue/mail/change/", "queue/mail/change/?tab=settings")
    )
    assert [page.count('popovertarget="tq-pause-this">') for page in (limit, queue, settings)] == [1, 1, 0]
    assert 'id="tq-reason"' not in limit
