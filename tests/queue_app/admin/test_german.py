"""The pages in German: names of models and fields, help texts, and the messages of actions on many tasks."""

import pytest
from django.contrib.messages import get_messages
from django.test import RequestFactory
from django.utils import timezone, translation

from queue_app.admin.site import TEXTS
from queue_app.core.recurrence import Recurrence
from queue_app.dashboard.labels import RENAMED, translate
from queue_app.models import AuditEntry, Operation, Task
from queue_app.services.control.audit import ADMIN, record
from tests.queue_app.admin.test_audit import own_admins
from tests.support.factories import DeadLetterFactory, StaffFactory, WorkerFactory
from tests.support.pages import CONFIRMED

#: Models whose pages have templates of their own, which name what they show.
OWN_PAGES = {"Task", "Worker", "TaskStats", "Workflow", "ApiKey", "WorkerToken"}


@pytest.fixture
def german(settings):
    settings.LANGUAGE_CODE = "de"
    with translation.override("de"):
        yield


def shown(model, model_admin, request):
    """Return the names of the fields that the lists and forms of a model show."""
    names = {name for name in model_admin.list_display if isinstance(name, str)}
    if model.__name__ not in OWN_PAGES:
        for _title, options in model_admin.get_fieldsets(request, model()):
            parts = [part for part in options["fields"] if not callable(part)]  # a column has its field's name
            names |= {each for part in parts for each in ([part] if isinstance(part, str) else part)}
    fields = {field.name: field for field in model._meta.fields}
    return {str(fields[name].verbose_name) for name in names if name in fields and not hasattr(model_admin, name)}


def test_every_name_that_a_page_shows_can_be_translated(db):
    request = RequestFactory().get("/")
    request.user = StaffFactory(is_superuser=True)
    missing = {}
    for model, model_admin in own_admins().items():
        with translation.override("en"):
            names = shown(model, model_admin, request)
            names |= {str(model._meta.verbose_name), str(model._meta.verbose_name_plural)}
        if lost := names - {*TEXTS, *map(str, RENAMED.values())}:
            missing[model.__name__] = lost
    assert missing == {}


@pytest.mark.usefixtures("german")
def test_forms_and_menus_are_german(staff):
    page = staff.get("/admin/queue_app/queue/add/").content.decode()
    for text in ("Warteschlange hinzufügen", "Höchstens gleichzeitig:", "Höchste Zahl von Aufgaben", ">Zeitpläne</a>"):
        assert text in page
    assert "Max concurrent" not in page


@pytest.mark.usefixtures("german")
def test_an_entry_of_the_audit_log_is_no_verb(staff, db):
    record("pause", "queue", ["mail"], by="otto", via=ADMIN)
    page = staff.get(f"/admin/queue_app/auditentry/{AuditEntry.objects.get().pk}/change/").content.decode()
    assert "<title>Protokolleintrag |" in page


@pytest.mark.usefixtures("german")
def test_the_path_to_a_page_and_its_title_name_the_object_in_german(staff, make_task, end_task):
    record("pause", "queue", ["mail"], by="otto", via=ADMIN, before={"max_concurrent": 4}, after={"max_concurrent": 5})
    letter = DeadLetterFactory()
    operation = Operation.objects.create(kind="replay", target="dead_letters", total=7, created_at=timezone.now())
    pages = {"auditentry": AuditEntry.objects.get().pk, "deadletter": letter.pk, "operation": operation.pk}
    texts = {name: staff.get(f"/admin/queue_app/{name}/{pk}/change/").content.decode() for name, pk in pages.items()}
    assert "pause queue mail" not in texts["auditentry"]
    assert "Warteschlange <a" in texts["auditentry"]
    assert "höchstens gleichzeitig" in texts["auditentry"]
    assert "max concurrent" not in texts["auditentry"]
    assert f"{letter.task_id}: {letter.reason}" not in texts["deadletter"]
    assert str(letter) == f"{letter.task_type} {letter.task_id}"
    assert "wieder einreihen 7 aufgegebene Aufgaben: läuft" in texts["operation"]
    assert "dead letters" not in texts["operation"]


@pytest.mark.usefixtures("german")
def test_actions_on_many_answer_in_german(staff, make_task, end_task):
    waiting, ended = make_task(), end_task(make_task(), "completed")
    selected = {"_selected_action": [waiting.pk, ended.pk], "action": "cancel_selected", **CONFIRMED}
    told = [str(message) for message in get_messages(staff.post("/admin/queue_app/task/", selected).wsgi_request)]
    assert told[0].startswith("1 Aufgabe abgebrochen.")
    assert told[1:] == ["1 Aufgabe übersprungen (schon beendet): 1 erledigt."]
    letter = DeadLetterFactory(task=end_task(make_task(), "dead_letter"))
    selected = {"_selected_action": [letter.pk], "action": "replay_selected", "index": "0", **CONFIRMED}
    told = [str(message) for message in get_messages(staff.post("/admin/queue_app/deadletter/", selected).wsgi_request)]
    assert told[2].startswith("1 aufgegebene Aufgabe wieder eingereiht.")
    assert Task.objects.get(pk=letter.task_id).status == "queued"


@pytest.mark.usefixtures("german")
def test_the_search_says_in_german_what_it_read(staff):
    page = staff.get("/admin/queue_app/task/", {"q": "abcdef12"}).content.decode()
    assert "Das Ende der ID wurde unter den neuesten 1,000,000 Aufgaben gesucht." in page


@pytest.mark.usefixtures("german")
def test_a_task_says_in_german_why_it_waits(staff, make_task):
    WorkerFactory(name="web-1", task_types=["shop.train"], concurrency=5)
    task = make_task("shop.train", capabilities=("gpu",))
    page = staff.get(f"/admin/queue_app/task/{task.pk}/change/").content.decode()
    assert "Kein laufender Worker dieser Warteschlange bietet gpu. Am ehesten infrage: web-1 bietet gpu nicht." in page
    assert "Die Erste ihrer Warteschlange, sobald sie beginnen kann." in page
    assert ">wartend<" in page, "its state too"
    overview = staff.get("/admin/queue_app/").content.decode()
    assert "Kein laufender Worker dieser Warteschlange bietet gpu." in overview
    assert "No live worker" not in overview


@pytest.mark.usefixtures("german")
def test_a_refused_action_answers_in_german(staff, make_task, end_task):
    task = end_task(make_task(), "completed")
    answer = staff.post(f"/admin/queue_app/task/{task.pk}/cancel/")
    told = [str(message) for message in get_messages(answer.wsgi_request)]
    assert told == ["Die Aufgabe ist erledigt; abbrechen lässt sich das nicht mehr."]


@pytest.mark.usefixtures("german")
@pytest.mark.parametrize(
    ("cron", "words"),
    [
        ("*/15 * * * *", "Alle 15 Minuten (UTC)"),
        ("@daily", "Täglich um 00:00 (UTC)"),
        ("0 8 * * mon-fri", "Montag bis Freitag um 08:00 (UTC)"),
        ("0 0 L * *", "Am letzten Tag jedes Monats um 00:00 (UTC)"),
        ("0 8 * * MON#1", "Cron 0 8 * * MON#1 (UTC)"),
    ],
)
def test_cron_is_read_in_german(cron, words):
    assert translate(Recurrence(cron=cron).words) == words


@pytest.mark.usefixtures("german")
def test_numbers_that_a_browser_reads_have_a_point(staff, db):
    DeadLetterFactory()
    page = staff.get("/admin/queue_app/deadletter/matching/?queue=default").content.decode()
    assert 'name="rate" min="0.001" max="10000' in page
