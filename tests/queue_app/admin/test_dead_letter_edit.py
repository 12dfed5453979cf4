"""Dead letters in the admin: parameters and arguments that staff edit before a replay."""

import json
from types import SimpleNamespace

import pytest

from queue_app.core.masking import MASK
from queue_app.models import TaskPayload
from tests.queue_app.admin.test_dead_letters import CANARY, LETTERS, log, state


@pytest.fixture
def charge(monkeypatch):
    """Let this process know the function of every task type."""
    function = SimpleNamespace(func=lambda order, password: None, takes_context=False)
    monkeypatch.setattr("queue_app.registry.get", lambda _type: function)
    monkeypatch.setattr("queue_app.registry.known", lambda _type: function)


def test_edited_parameters(staff, committed, dead):
    letter = dead(parameters={"n": 1, "password": CANARY}, args=[7])
    page = staff.get(f"{LETTERS}{letter.pk}/edit/")
    text = page.context["form"].initial["parameters"]
    assert json.loads(text) == {"n": 1, "password": MASK}
    with committed():
        response = staff.post(
            f"{LETTERS}{letter.pk}/edit/", {"parameters": text.replace("1", "2"), "reason": "typo"}, follow=True
        )
    assert "queued again, with these parameters" in response.content.decode()
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
    assert json.loads(page.context["form"].initial["args"]) == {"order": 1, "password": MASK}
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
        ("[1]", "Parameters are a JSON object"),
        ("", "This field is required"),
        ('{"a": 1, "a": 2}', "a key occurs twice"),
        ('{"a": NaN}', "not a finite number"),
        ('{"a": 1e400}', "not a finite number"),
        ('{"a": 123456789012345678901234567890}', "beyond"),
        (f'{{"a": {"9" * 5000}}}', "This is not JSON"),
        ('{"a": "\\u0000"}', "NUL"),
        ('{"a": "\\ud800"}', "surrogate"),
        ("[" * 100_000, "This is not JSON"),
        ('{"a": ' * 40 + "1" + "}" * 40, "nested deeper"),
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
