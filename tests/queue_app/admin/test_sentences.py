"""What people did, in sentences: the audit log, the latest changes of an object, the marks of charts."""

import pytest
from django.utils import timezone
from django.utils.html import strip_tags

from queue_app.core import shared
from queue_app.dashboard import charts
from queue_app.dashboard.sentences import change_text, entry_sentence
from queue_app.models import AuditEntry
from queue_app.services.control.audit import ADMIN

REPLAY = "01a206d4-8707-7597-8f0b-81e978a4ea6e"


def entry(action="queue.pause", target="queue", target_id="mail", **options):
    options |= {"target": target, "target_id": target_id, "by": "otto", "via": ADMIN, "at": timezone.now()}
    return AuditEntry.objects.create(action=action, **options)


@pytest.mark.parametrize(
    ("action", "target", "target_id", "count", "words"),
    [
        ("queue.pause", "queue", "mail", 1, "otto paused queue mail"),
        ("deadletter.replay_many", "operation", REPLAY, 1, "otto replayed dead letters (operation 78a4ea6e)"),
        ("task.cancel_all", "operation", REPLAY, 1, "otto cancelled tasks (operation 78a4ea6e)"),
        ("deadletter.discard_many", "deadletter", "", 74, "otto discarded 74 dead letters"),
    ],
)
def test_an_action_is_a_sentence(rows, action, target, target_id, count, words):
    found = entry(action, target, target_id, count=count)
    assert strip_tags(entry_sentence(found, lambda model, pk: f"/{model}/{pk}/")) == words


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ({"paused": False, "by": "", "reason": ""}, {"paused": True}, "paused: no → yes"),
        ({}, {"rate": None, "filter": {"queue": "mail", "user": None}}, "filter: queue: mail"),
        ({"max_concurrent": None}, {"max_concurrent": 4}, "max concurrent: - → 4"),
        ({}, {"capabilities": ["gpu", "ssd"], "weights": {}}, "capabilities: gpu, ssd"),
        ({}, {}, ""),
    ],
)
def test_a_change_names_only_what_says_something(rows, before, after, words):
    assert change_text(entry(before=before, after=after)) == words


def test_pages_and_charts_say_it_in_the_same_words(staff, make_task):
    make_task(queue="mail")
    entry(after={"paused": True}, before={"paused": False}, reason="it's <late>")
    shared.forget()
    [mark] = charts.marks("1h")
    assert mark["text"] == "otto paused queue mail"
    page = strip_tags(staff.get("/admin/queue_app/queue/mail/change/").content.decode())
    assert "otto paused queue mail via admin" in " ".join(page.split())
