"""Dead letters and bulk replays in the admin: permissions, effects, pages, history."""

import json
import uuid
from datetime import timedelta
from types import SimpleNamespace

import pytest
from django.contrib.admin.models import LogEntry
from django.utils import timezone

from queue_app.core.failures import fingerprint
from queue_app.core.redaction import MASK
from queue_app.models import DeadLetter, Operation, Task, TaskPayload
from queue_app.services import discard, replay
from queue_app.services.operations.request import start_replay
from queue_app.services.operations.run import run_operations
from queue_app.services.read.dead_letters import DeadLetterFilter
from tests.support.pages import CONFIRMED, log_in, messages_of, select, text_of, words_of

PAYLOAD = "view_payload"
LETTERS = "/admin/queue_app/deadletter/"
OPERATIONS = "/admin/queue_app/operation/"
CANARY = "hunter2-canary-9f31"
SCRIPT = "<script>alert('x')</script>"
REPLAY, DISCARD, VIEW = "replay_deadletter", "discard_deadletter", "view_deadletter"
WATCH = "view_operation"


def log():
    return list(LogEntry.objects.order_by("id").values_list("change_message", flat=True))


def state(letter):
    letter.refresh_from_db()
    return letter.state


def test_replay_comes_before_links_to_other_pages(staff, dead):
    letter = dead()
    page = staff.get(f"/admin/queue_app/task/{letter.task_id}/change/").content.decode()
    failure = page[page.index('class="tq-failure"') :]
    assert failure.index("/replay/") < failure.index("<a ")


def test_a_dead_letter_offers_one_way_to_run_with_edits(staff, dead):
    letter = dead()
    address = f"/admin/queue_app/task/{letter.task_id}/change/"
    page = words_of(staff.get(address))
    assert "Replay with edited arguments" in page
    assert "Run again with edits" not in page
    discard(letter.pk, by="ina", reason="")
    page = words_of(staff.get(address))
    assert "Replay with edited arguments" not in page
    assert "Run again with edits" in page, "a discarded one cannot be replayed"


# -- permissions ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("permissions", "replays", "discards"),
    [
        ([], False, False),
        ([VIEW, "change_deadletter", "delete_deadletter"], False, False),
        ([REPLAY, DISCARD], False, False),
        ([VIEW, REPLAY, PAYLOAD], True, False),
        ([VIEW, DISCARD], False, True),
        ([VIEW, REPLAY, DISCARD, PAYLOAD], True, True),
    ],
)
def test_who_may_act(dead, permissions, replays, discards):
    client = log_in(*permissions)
    one, two, three, four = dead(), dead(), dead(), dead()
    page = client.get(f"{LETTERS}{one.pk}/change/").content.decode()
    assert ("/replay/" in page) == ("/edit/" in page) == replays
    assert ("/discard/" in page) == discards
    menu = client.get(LETTERS).content.decode()
    assert (("replay_selected" in menu), ("discard_selected" in menu)) == (replays, discards)
    assert client.get(f"{LETTERS}{one.pk}/edit/").status_code == (200 if replays else 403)
    assert client.post(f"{LETTERS}{one.pk}/edit/", {"parameters": "{}"}).status_code == (302 if replays else 403)
    assert client.post(f"{LETTERS}{two.pk}/replay/").status_code == (302 if replays else 403)
    select(client, LETTERS, "replay_selected", [three])
    assert {state(letter) for letter in (one, two, three)} == ({"replayed"} if replays else {"open"})
    assert client.post(f"{LETTERS}{four.pk}/discard/", CONFIRMED).status_code == (302 if discards else 403)
    assert state(four) == ("discarded" if discards else "open")
    five = dead()
    select(client, LETTERS, "discard_selected", [five])
    assert state(five) == ("discarded" if discards else "open")


def test_changes_need_a_post_with_a_csrf_token(dead):
    client = log_in(VIEW, REPLAY, DISCARD, WATCH, PAYLOAD, enforce_csrf_checks=True)
    letter = dead()
    operation = start_replay(DeadLetterFilter(), by="")
    for path in (
        f"{LETTERS}{letter.pk}/replay/",
        f"{LETTERS}{letter.pk}/discard/",
        f"{OPERATIONS}{operation.pk}/stop/",
    ):
        assert client.get(path).status_code == 405
        assert client.post(path).status_code == 403
    assert client.post(f"{LETTERS}{letter.pk}/edit/", {"parameters": "{}"}).status_code == 403
    assert select(client, LETTERS, "replay_selected", [letter]).status_code == 403
    assert client.get(f"{LETTERS}{letter.pk}/edit/").status_code == 200
    assert state(letter) == "open"
    operation.refresh_from_db()
    assert operation.state == "running"


def test_staff_cannot_edit_rows(staff, dead):
    letter, operation = dead(), start_replay(DeadLetterFilter(), by="")
    for path in (f"{LETTERS}{letter.pk}", f"{OPERATIONS}{operation.pk}"):
        assert staff.post(f"{path}/change/", {"state": "done", "reason": "x"}).status_code == 403
        assert staff.post(f"{path}/delete/", {"post": "yes"}).status_code == 403
    assert staff.get(f"{OPERATIONS}add/").status_code == 403


@pytest.mark.parametrize(
    ("permissions", "sees", "stops"),
    [([], False, False), ([REPLAY], False, False), ([WATCH], True, False), ([WATCH, REPLAY], True, True)],
)
def test_who_watches_and_stops_replays(dead, permissions, sees, stops):
    dead()
    client = log_in(*permissions)
    one, two = (start_replay(DeadLetterFilter(), by="x") for _ in range(2))
    assert client.get(OPERATIONS).status_code == (200 if sees else 403)
    response = client.get(f"{OPERATIONS}{one.pk}/change/")
    assert response.status_code == (200 if sees else 403)
    assert ("/stop/" in response.content.decode()) == stops
    assert client.post(f"{OPERATIONS}{one.pk}/stop/").status_code == (302 if stops else 403)
    select(client, OPERATIONS, "stop_selected", [two])
    assert set(Operation.objects.values_list("state", flat=True)) == ({"cancelled"} if stops else {"running"})


# -- lists and pages ---------------------------------------------------------------------------------------


def test_the_list_shows_what_happened(staff, dead):
    letter = dead("no luck with password=abc", user="ann")
    page = staff.get(LETTERS).content.decode()
    for text in ("ValueError", "no luck with password=********", "retries exhausted", "attempt 1", "ann", "just now"):
        assert text in page
    assert f"/admin/queue_app/task/{letter.task_id}/change/" in page
    assert "in 29 d" in page


@pytest.mark.parametrize("kind", ["open", "replayed", "discarded"])
def test_filter_by_state(staff, dead, kind):
    letters = {"open": dead(), "replayed": dead(), "discarded": dead()}
    replay(letters["replayed"].id, by="ann")
    discard(letters["discarded"].id, by="bob", reason="too old")
    response = staff.get(LETTERS, {"state": kind})
    assert list(response.context["cl"].result_list) == [letters[kind]]
    page = response.content.decode()
    assert {"open": "tq-letter-open", "replayed": "by ann", "discarded": "too old"}[kind] in page
    assert staff.get(LETTERS, {"state": "x"}, follow=True).status_code == 200


def test_a_page_without_its_task(staff, dead):
    letter = dead()
    Task.objects.all().delete()
    assert staff.get(LETTERS).status_code == staff.get(f"{LETTERS}{letter.pk}/change/").status_code == 200
    assert "its task was purged" in staff.get(f"{LETTERS}{letter.pk}/edit/", follow=True).content.decode()
    assert "its task was purged" in staff.post(f"{LETTERS}{letter.pk}/replay/", follow=True).content.decode()


def test_a_dead_letter_and_its_task_are_one_page(staff, committed, dead):
    letter = dead("the printer is on fire", user="ann")
    task = f"/admin/queue_app/task/{letter.task_id}/change/"
    response = staff.get(f"{LETTERS}{letter.pk}/change/")
    assert (response.status_code, response.url) == (302, task)
    page = staff.get(task).content.decode()
    told = ("the printer is on fire", "retries exhausted, attempt 1", "in 29 d", f"{LETTERS}{letter.pk}/replay/")
    assert [text for text in told if text not in page] == []
    assert f"{task.removesuffix('change/')}retry/" not in page, "replay is the same"
    assert page.index("the printer is on fire") < page.index("Failed attempts") < page.index("Timeline")
    with committed():
        replay(letter.id, by="bob")
    again = staff.get(f"{LETTERS}{letter.pk}/change/", follow=True)
    assert again.redirect_chain == [(f"{task}?letter={letter.pk}", 302)]
    assert "by bob" in again.content.decode()
    assert "by bob" not in staff.get(task).content.decode(), "the task has no dead letter now"
    assert staff.get(f"{task}?letter={dead().pk}").status_code == 200, "of another task"
    assert staff.get(f"{task}?letter=x").status_code == 200
    assert log_in(VIEW).get(f"{LETTERS}{letter.pk}/change/").status_code == 200, "without view_task"


def test_secrets_and_markup(staff, dead):
    letter = dead(
        f"refused {CANARY}: {SCRIPT}", parameters={"password": CANARY, "url": f"https://u:{CANARY}@x/", "n": SCRIPT}
    )
    discarded = dead()
    discard(discarded.id, by="ann", reason=SCRIPT)
    start_replay(DeadLetterFilter(text=SCRIPT), by="ann", reason=SCRIPT)
    operation = Operation.objects.get()
    text = ""
    for path in (
        LETTERS,
        f"{LETTERS}{letter.pk}/change/",
        f"{LETTERS}{letter.pk}/edit/",
        f"{LETTERS}{letter.pk}/history/",
        f"{LETTERS}{discarded.pk}/change/",
        OPERATIONS,
        f"{OPERATIONS}{operation.pk}/change/",
    ):
        for client in (staff, log_in(VIEW, PAYLOAD, WATCH, REPLAY)):  # who may not see tasks has a page of letters
            response = client.get(path, follow=True)
            assert response.status_code == 200, path
            text += response.content.decode()
    assert CANARY not in text
    assert SCRIPT not in text
    assert "&lt;script&gt;alert(" in text


# -- effects -----------------------------------------------------------------------------------------


def test_replay_selected(staff, committed, dead):
    letters = [dead() for _ in range(3)]
    discard(letters[1].id, by="")
    with committed():
        response = select(staff, LETTERS, "replay_selected", letters, reason="printer works")
    assert [state(letter) for letter in letters] == ["replayed", "discarded", "replayed"]
    [replayed] = messages_of(response)
    assert replayed.startswith("Replayed 2 dead letters.")
    assert f"{OPERATIONS}{Operation.objects.get().pk}/change/" in replayed
    assert log() == ["Started to replay 2 dead letters: printer works"]
    letters[0].refresh_from_db()
    assert letters[0].replayed_by == "superuser"
    assert set(Task.objects.filter(status="queued").values_list("pk", flat=True)) == {
        letters[0].task_id,
        letters[2].task_id,
    }


@pytest.mark.parametrize("how", ["pace", "many"])
def test_a_large_or_paced_replay_becomes_an_operation(staff, dead, how, override):
    letters = [dead() for _ in range(3)]
    if how == "many":
        override("queue_app.admin.dead_letter", AT_ONCE=2)
    rate = "0.5" if how == "pace" else ""
    response = select(staff, LETTERS, "replay_selected", letters, reason="fixed", rate=rate)
    operation = Operation.objects.get()
    assert (operation.total, operation.by, operation.reason) == (3, "superuser", "fixed")
    assert operation.rate == (0.5 if how == "pace" else None)
    assert f"{OPERATIONS}{operation.pk}/change/" in messages_of(response)[0]
    assert log() == ["Started to replay 3 dead letters: fixed"]
    assert {state(letter) for letter in letters} == {"open"}
    run_operations()
    page = staff.get(f"{OPERATIONS}{operation.pk}/change/").content.decode()
    assert ("1 of 3" if how == "pace" else "3 of 3") in page
    found = staff.get(LETTERS, {"operation_id": str(operation.pk)}).context["cl"].result_list
    assert len(list(found)) == (1 if how == "pace" else 3)


@pytest.mark.parametrize(
    "bad", [{"rate": "0"}, {"rate": "nan"}, {"rate": "x"}, {"reason": "x" * 201}, {"reason": "a\u202eb"}]
)
def test_bad_values_of_an_action_change_nothing(staff, dead, bad):
    letter = dead()
    assert 'class="errorlist"' in text_of(select(staff, LETTERS, "replay_selected", [letter], **bad))
    assert state(letter) == "open"
    assert not Operation.objects.exists()
    assert log() == []


def test_too_many(staff, dead, override):
    override("queue_app.admin.dead_letter", COUNT_LIMIT=2)
    letters = [dead() for _ in range(3)]
    for action in ("replay_selected", "discard_selected"):
        assert messages_of(select(staff, LETTERS, action, letters[:1], select_across="1"))[-1].startswith("More than")
    assert {state(letter) for letter in letters} == {"open"}


def test_the_page_of_a_replay_shows_those_that_run_first(staff, dead):
    letters = [dead(), dead()]
    for order, first, heading in (("newest", 1, "The newest of them"), ("", 0, "The oldest of them")):
        page = text_of(staff.get(f"{LETTERS}matching/", {"order": order}))
        assert heading in page
        places = [page.index(f"{LETTERS}{letter.pk}/change/") for letter in letters]
        assert places.index(min(places)) == first


def test_discard_selected(staff, dead):
    letters = [dead(), dead()]
    response = select(staff, LETTERS, "discard_selected", letters, reason="spam")
    assert messages_of(response) == ["Discarded 2 dead letters."]
    assert log() == ["Discarded: spam"] * 2
    letters[0].refresh_from_db()
    assert (letters[0].discarded_by, letters[0].discard_reason) == ("superuser", "spam")


def test_buttons(staff, dead):
    one, two = dead(), dead()
    page = staff.post(f"{LETTERS}{one.pk}/replay/", {"reason": "why not"}, follow=True).content.decode()
    assert "The task is queued again." in page
    assert "Replay with edited" not in page
    page = staff.post(f"{LETTERS}{one.pk}/replay/", follow=True).content.decode()
    assert "it was replayed by superuser at" in page
    page = text_of(staff.post(f"{LETTERS}{two.pk}/discard/", {"reason": "old"}))
    assert "cannot be replayed" in page
    assert 'value="old"' in page
    assert state(two) == "open"
    page = text_of(staff.post(f"{LETTERS}{two.pk}/discard/", CONFIRMED | {"reason": "x" * 201}, follow=True))
    assert "the limit is 200" in page
    page = staff.post(f"{LETTERS}{two.pk}/discard/", CONFIRMED | {"reason": "old"}, follow=True).content.decode()
    assert "The dead letter is discarded." in page
    assert log() == ["Replayed: why not", "Discarded: old"]
    for action in ("replay", "discard", "edit"):
        response = staff.post(f"{LETTERS}{uuid.uuid4()}/{action}/")
        assert (response.status_code, messages_of(response)[-1].startswith("There is no dead letter")) == (302, True)


def test_stop(staff, dead):
    dead()
    operation, other, ended = (start_replay(DeadLetterFilter(), by="x") for _ in range(3))
    Operation.objects.filter(pk=ended.pk).update(state="done", finished_at=timezone.now())
    page = staff.post(f"{OPERATIONS}{operation.pk}/stop/", follow=True).content.decode()
    assert "The operation is stopped; what it has changed stays changed." in page
    assert "by superuser" in page
    page = staff.post(f"{OPERATIONS}{operation.pk}/stop/", follow=True).content.decode()
    assert "The operation is cancelled already." in page
    assert messages_of(select(staff, OPERATIONS, "stop_selected", [other, ended]))[-2:] == [
        "Stopped 1 operation.",
        "Skipped 1 (ended already, or you may not stop them).",
    ]
    assert log() == ["Stopped."] * 2
    assert staff.post(f"{OPERATIONS}{uuid.uuid4()}/stop/").status_code == 302
    operation.refresh_from_db()
    assert (operation.state, operation.ended_by) == ("cancelled", "superuser")


# -- what a list is narrowed to -------------------------------------------------------------------------


def of_one_cause(dead):
    letters = [dead(f"smtp{n} has closed the connection", user="ina") for n in (1, 2)]
    DeadLetter.objects.update(fingerprint="79e0fbea77ab47fa", exception_class="builtins.ConnectionError")
    return letters


def test_causes_name_the_last_hour_and_the_releases(staff, dead, make_worker):
    letters, now = (
        [dead(f"card of order {n} declined: {who}") for n, who in enumerate(("Ann", "kim", "Omar"))],
        timezone.now(),
    )
    for letter, minutes, release in zip(letters, (1, 59, 61), ("2026.11.2", "2026.11.3", ""), strict=True):
        DeadLetter.objects.filter(pk=letter.pk).update(
            died_at=now - timedelta(minutes=minutes), fingerprint=fingerprint("E", letter.message)
        )
        worker = make_worker(f"w{minutes}", version=release)
        Task.objects.filter(pk=letter.task_id).update(worker_id=worker.pk)
    words = words_of(staff.get(f"{LETTERS}causes/"))
    assert "release 2026.11.2, 2026.11.3 3 2 in the last hour" in words


def test_a_confirmation_says_what_a_discard_means(staff, dead):
    gone, letter = dead(), dead()
    discard(gone.id, by="ann")
    chosen = {"action": "discard_selected", "index": "0", "_selected_action": [str(gone.pk), str(letter.pk)]}
    words = words_of(staff.post(LETTERS, chosen))
    assert "Discard: 1 dead letter" in words
    assert "cannot be replayed" in words
    assert "1 is left alone: it was replayed or discarded before." in words
    assert state(letter) == "open"


def test_operations_and_the_log_name_a_cause_and_no_fingerprint(staff, dead):
    letters = of_one_cause(dead)
    matching = {"act": "replay", "fingerprint": "79e0fbea77ab47fa", "limit": "1", **CONFIRMED}
    refused = staff.post(f"{LETTERS}matching/", matching | {"act": "discard", "order": "newest"})
    assert "Discarding takes the oldest first" in words_of(refused)
    staff.post(f"{LETTERS}matching/", matching)
    staff.post(f"{LETTERS}{letters[0].pk}/discard/", CONFIRMED)
    operation = Operation.objects.get()
    for client in (staff, log_in(WATCH, "view_auditentry")):
        for path in (OPERATIONS, f"{OPERATIONS}{operation.pk}/change/", "/admin/queue_app/auditentry/"):
            words = words_of(client.get(path))
            assert "79e0fbea77ab47fa" not in words
            assert ("has closed the connection" in words) == (client is staff), path
    log = words_of(staff.get("/admin/queue_app/auditentry/"))
    assert "superuser discarded dead letter send_mail via admin" in log
    assert "superuser replayed 1 dead letter via admin" in log
    assert "2 changes" in log


def test_pages_name_a_cause_by_its_error(dead):
    of_one_cause(dead)
    client = log_in(VIEW, REPLAY, PAYLOAD)
    listed = words_of(client.get(f"{LETTERS}?fingerprint=79e0fbea77ab47fa&state=open"))
    assert "cause ConnectionError: smtp2 has closed the connection ✕" in listed
    matching = client.get(f"{LETTERS}matching/?fingerprint=79e0fbea77ab47fa")
    assert "Cause: ConnectionError: smtp2 has closed the connection any cause" in words_of(matching)
    assert "2 open dead letters match." in words_of(matching)
    assert "79e0fbea77ab47fa" not in words_of(matching)
    hidden = words_of(log_in(VIEW, REPLAY).get(f"{LETTERS}?fingerprint=79e0fbea77ab47fa"))
    assert "cause retries exhausted, " in hidden
    assert "closed the connection" not in hidden
    assert client.get(f"{LETTERS}?fingerprint=1234").status_code == 200


def test_a_list_shows_the_conditions_that_its_menus_lack(dead):
    of_one_cause(dead)
    client = log_in(VIEW, "view_task", "view_queue")
    listed = client.get("/admin/queue_app/task/?user=ina&status=dead_letter&p=1")
    assert "user ina ✕" in words_of(listed)
    assert '<a href="?status=dead_letter" aria-label="Without the condition user">' in listed.content.decode()
    assert "✕" not in words_of(client.get("/admin/queue_app/task/?q=ina"))


def test_the_queue_and_the_user_of_a_dead_letter_are_links(dead):
    dead(user="ina", queue="mail")
    page = log_in(VIEW).get(LETTERS).content.decode()
    assert '<a href="/admin/queue_app/queue/mail/change/">mail</a>' in page
    assert '<a href="/admin/queue_app/taskstats/user/ina/">ina</a>' in page


# -- edits before a replay -------------------------------------------------------------------------------------------


@pytest.fixture
def charge(known_tasks):
    """Let this process know the function of the tasks."""
    known_tasks["shop.tasks.send_mail"] = SimpleNamespace(func=lambda order, password: None, takes_context=False)


def test_edited_parameters(staff, committed, dead):
    letter = dead(parameters={"n": 1, "password": CANARY}, args=[7])
    page = staff.get(f"{LETTERS}{letter.pk}/edit/")
    text = page.context["form"]["parameters"].value()
    assert json.loads(text) == {"n": 1, "password": MASK}
    with committed():
        response = staff.post(
            f"{LETTERS}{letter.pk}/edit/", {"parameters": text.replace("1", "2"), "reason": "typo"}, follow=True
        )
    assert "queued again, with these arguments" in response.content.decode()
    payload = TaskPayload.objects.get(pk=letter.task_id)
    assert (payload.parameters, payload.args) == ({"n": 2, "password": CANARY}, [7])
    assert log() == ["Replayed with parameters edited: typo"]
    assert state(letter) == "replayed"
    assert letter.parameters_edited
    response = staff.post(f"{LETTERS}{letter.pk}/edit/", {"parameters": "{}"}, follow=True)
    assert "it was replayed by superuser" in response.content.decode()


@pytest.mark.parametrize(
    ("posted", "stored"),
    [
        ('{"order": 2, "password": "••••"}', [2, CANARY]),
        ('{"password": "new", "order": 1}', [1, "new"]),
        ('[3, "••••"]', [3, CANARY]),
        ("", [1, CANARY]),
    ],
)
@pytest.mark.usefixtures("charge")
def test_positional_arguments_are_edited_by_name(staff, committed, dead, posted, stored):
    letter = dead(args=[1, CANARY])
    page = staff.get(f"{LETTERS}{letter.pk}/edit/")
    assert page.context["form"]["args"].value() == {"order": "1", "password": f'"{MASK}"'}
    assert CANARY not in page.content.decode()
    with committed():
        staff.post(f"{LETTERS}{letter.pk}/edit/", {"parameters": "{}", "args": posted.replace("••••", MASK)})
    assert TaskPayload.objects.get(pk=letter.task_id).args == stored
    assert state(letter) == "replayed"
    assert letter.parameters_edited is (stored != [1, CANARY])


@pytest.mark.parametrize(
    ("posted", "problem"),
    [
        ('{"order": 2}', "exactly these names: order, password"),
        ("7", "exactly these names"),
        ("{", "This is not JSON"),
        (f'[{{"a": "{MASK}"}}, "x"]', "holds the mask"),
        ('["\\u0000", 1]', "NUL"),
    ],
)
@pytest.mark.usefixtures("charge")
def test_bad_positional_arguments_are_refused_beside_their_field(staff, dead, posted, problem):
    letter = dead(args=[1, CANARY])
    answer = staff.post(f"{LETTERS}{letter.pk}/edit/", {"parameters": "{}", "args": posted})
    assert problem in str(answer.context["form"].errors["args"])
    assert state(letter) == "open"
    assert TaskPayload.objects.get(pk=letter.task_id).args == [1, CANARY]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{", "This is not JSON"),
        ('{"a": 1, "a": 2}', "a key occurs twice"),
        ('{"a": NaN}', "not a finite number"),
        (f'{{"other": "{MASK}"}}', "holds the mask"),
    ],
)
def test_bad_parameters(staff, dead, text, problem):
    letter = dead(parameters={"n": 1, "password": CANARY})
    response = staff.post(f"{LETTERS}{letter.pk}/edit/", {"parameters": text})
    assert response.status_code == 200
    assert problem in response.content.decode()
    assert CANARY not in response.content.decode()
    assert state(letter) == "open"
    assert TaskPayload.objects.get(pk=letter.task_id).parameters == {"n": 1, "password": CANARY}
    assert log() == []
