"""Pages hide secrets, and escape everything else."""

import pytest

from queue_app.core.redaction import redact, redact_value, secrets_of
from queue_app.core.states import Status
from queue_app.models import DeadLetter, Task
from tests.support.factories import DeadLetterFactory

CANARY = "hunter2-canary-9f31"
SCRIPT = "<script>alert('x')</script>"


def crawl(client, task, *, api=True):
    """Read every page that could show data of the task; none may hold the canary. Return their texts."""
    letter = DeadLetter.objects.first()
    pages = [
        "/admin/queue_app/task/",
        f"/admin/queue_app/task/?q={task.pk}",
        f"/admin/queue_app/task/{task.pk}/change/",
        f"/admin/queue_app/task/{task.pk}/history/",
        "/admin/queue_app/deadletter/",
        f"/admin/queue_app/deadletter/{letter.pk}/change/",
        f"/admin/queue_app/task/{task.pk}/run-again/",
        "/admin/queue_app/deadletter/causes/",
        f"/admin/queue_app/deadletter/matching/?fingerprint={letter.fingerprint}",
        "/admin/queue_app/auditentry/",
        "/admin/queue_app/queue/live/",
        "/admin/queue_app/",
        "/admin/",
        "/api/v1/tasks",
        f"/api/v1/tasks/{task.pk}",
        "/api/v1/tasks/export",
        "/api/v1/dlq",
        f"/api/v1/dlq/{letter.pk}",
    ]
    if task.worker_id:
        pages.append(f"/admin/queue_app/worker/{task.worker_id}/change/")
    text = ""
    for page in pages if api else [page for page in pages if page.startswith("/admin/")]:
        response = client.get(page, follow=True)
        assert response.status_code == 200, page
        assert CANARY not in response.getvalue().decode(), page
        text += response.getvalue().decode() if response.streaming else response.content.decode()
    return text


#: Parameters with a secret each; all differ, as a known secret is masked wherever it stands.
HIDDEN = {
    "password": f"1-{CANARY}",
    "API-Key": f"2-{CANARY}",
    "nested": [{"authorization": f"Bearer 3-{CANARY}"}],
    "client_secret": {"inner": [f"4-{CANARY}"]},
    "accessToken": f"5-{CANARY}",
}
URL = {"url": f"https://user:6-{CANARY}@example.org/"}


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        (HIDDEN, f"refused 1-{CANARY} with password=7-{CANARY} at postgres://me:8-{CANARY}@db/x"),
        (URL, f"cannot reach postgres://me:6-{CANARY}@db/x, Authorization: Bearer 9-{CANARY}"),
    ],
    ids=["names", "a URL"],
)
def test_secrets_are_masked_everywhere(parameters, message, staff, make_task, make_worker, end_task):
    task = make_task(parameters=parameters | {"plain": "visible-text"})
    task = end_task(task, Status.DEAD_LETTER, error=message, worker=make_worker(), result={"echo": parameters})
    DeadLetterFactory(task=task, message=message)
    page = crawl(staff, task)
    assert "visible-text" in page
    assert "********" in page
    Task.objects.filter(pk=task.pk).update(status=Status.COMPLETED)
    crawl(staff, task)


def test_secret_positional_arguments_are_masked_by_the_names_of_the_function(
    staff, make_task, make_worker, end_task, known_tasks
):
    class Registered:
        takes_context = True

        @staticmethod
        def func(context, user, password):
            """Represent a task function."""

    task = make_task(args=["alice", CANARY, "third"])
    known_tasks[task.task_type] = Registered
    task = end_task(task, Status.FAILED, error=f"bad login {CANARY}", worker=make_worker())
    DeadLetterFactory(task=task, message="x")
    page = crawl(staff, task)
    assert "alice" in page
    assert "third" in page


DECLARED = "4111-canary-0042"


@pytest.mark.parametrize("by", ["its task", "the project", "a task of other code"])
def test_values_declared_sensitive_are_masked_everywhere(
    by, staff, make_task, make_worker, end_task, settings, known_tasks
):
    from queue_app import registry, task  # noqa: PLC0415

    def charge(order, card_number, **more):
        """Represent a task function."""

    charge.__qualname__ = "charge"
    names = ["card-number", "pin"]
    if by == "the project":
        settings.TASKQUEUE = settings.TASKQUEUE | {"SENSITIVE": names}
        charge = task()(charge)
    else:
        charge = task(sensitive=names)(charge)
    task_type = "shop.gone.charge" if by == "a task of other code" else registry.type_of(charge)
    message = f"declined {CANARY} for {DECLARED}, pin=behind-a-name"
    stored = make_task(
        task_type,
        args=[17, CANARY] if by == "its task" else [],
        parameters={"cardNumber": DECLARED, "deep": [{"Card-Number": CANARY}], "plain": "visible-text", "pin": 71},
    )
    stored = end_task(
        stored,
        Status.DEAD_LETTER,
        error=message,
        worker=make_worker(),
        result={"card_number": CANARY, "said": f"took {DECLARED}"},
    )
    DeadLetterFactory(task=stored, message=message)
    page = crawl(staff, stored)
    assert DECLARED not in page
    assert "behind-a-name" not in page
    assert "visible-text" in page
    for refused in (f"parameters.cardNumber:{DECLARED}", f"parameters.deep.card_number:{CANARY}"):
        assert (
            "Hidden values cannot be searched"
            in staff.get("/admin/queue_app/task/", {"q": refused}, follow=True).content.decode()
        )

    # Running the task again keeps masked values.
    from queue_app.services.lifecycle.actions import run_again  # noqa: PLC0415

    known_tasks[task_type] = charge
    shown = staff.get(f"/api/v1/tasks/{stored.pk}").json()["parameters"]
    assert shown["cardNumber"] == shown["deep"][0]["Card-Number"] == shown["pin"] == "********"
    again = run_again(stored.pk, parameters=shown | {"plain": "edited"})
    assert Task.objects.get(pk=again.id).payload.parameters["cardNumber"] == DECLARED


def test_a_sensitive_name_of_one_task_is_visible_in_others(staff, make_task, known_tasks):
    from queue_app import registry, task  # noqa: PLC0415

    def send(city):
        """Represent a task function."""

    def spy(city):
        """Represent another."""

    send.__qualname__, spy.__qualname__ = "send", "spy"
    sent = make_task(registry.type_of(task()(send)), parameters={"city": "visible-town"})
    spied = make_task(registry.type_of(task(sensitive=["city"])(spy)), parameters={"city": "hidden-town"})
    assert staff.get(f"/api/v1/tasks/{sent.pk}").json()["parameters"] == {"city": "visible-town"}
    assert staff.get(f"/api/v1/tasks/{spied.pk}").json()["parameters"] == {"city": "********"}


def test_declared_values_are_not_logged_when_a_task_fails(caplog, monkeypatch):
    import json  # noqa: PLC0415
    import logging  # noqa: PLC0415
    import types  # noqa: PLC0415

    from queue_app import registry, task, telemetry  # noqa: PLC0415
    from queue_app.core.records import TaskFailure  # noqa: PLC0415
    from queue_app.logs import JSONFormatter  # noqa: PLC0415

    def pay(card):
        """Represent a task function."""

    pay.__qualname__ = "pay"
    held = types.SimpleNamespace(
        id="t", task_type=registry.type_of(task(sensitive=["card"])(pay)), queue="q", attempt=1, worker_id=None,
        trace_id="", args=json.dumps([CANARY]), parameters=json.dumps({"more": {"card": DECLARED}}),
    )  # fmt: skip
    said = f"{CANARY} and {DECLARED}"
    failure = TaskFailure("ValueError", said, f"Traceback\nValueError: {said}", "failed")
    outcome = types.SimpleNamespace(task=held, failure=failure, error=ValueError(said))
    with caplog.at_level(logging.INFO, "taskqueue"):
        telemetry.attempt_failed(outcome, Status.QUEUED)
        telemetry.attempt_failed(outcome, Status.DEAD_LETTER)
        logging.getLogger("taskqueue").info("paid", extra={"card": DECLARED})
    lines = [JSONFormatter().format(record) for record in caplog.records]
    assert len(lines) == 3
    assert not [line for line in (*lines, caplog.text) if CANARY in line or DECLARED in line]


def test_sensitive_names_must_be_names():
    from django.tasks.exceptions import InvalidTask  # noqa: PLC0415

    from queue_app import task  # noqa: PLC0415

    with pytest.raises(InvalidTask, match="list of names"):
        task(sensitive="card")(crawl)
    with pytest.raises(TypeError, match="decorator only"):
        task(crawl).using(sensitive=["card"])


def test_markup_is_escaped_everywhere(staff, make_task, make_worker, end_task):
    worker = make_worker(name=SCRIPT, host=SCRIPT, task_types=[SCRIPT], version=SCRIPT[:50])
    task = make_task(
        SCRIPT, parameters={SCRIPT: SCRIPT, "t": "{{ 7|add:7 }}"}, args=[SCRIPT], user=SCRIPT, idempotency_key=SCRIPT
    )
    task = end_task(task, Status.DEAD_LETTER, error=SCRIPT, worker=worker)
    Task.objects.filter(pk=task.pk).update(capabilities=[SCRIPT])
    DeadLetterFactory(task=task, message=SCRIPT)
    page = crawl(staff, task, api=False)  # the API answers JSON
    assert SCRIPT not in page
    assert "&lt;script&gt;alert(" in page
    assert "{{ 7|add:7 }}" in page
    assert SCRIPT not in staff.get("/admin/queue_app/worker/").content.decode()


def test_secrets_of_finds_texts_and_numbers_under_sensitive_keys():
    value = {"password": "abcdef", "pin_token": 123456, "x": [{"secret": ["deep-one", {"k": "deep-two"}]}], "name": "n"}
    assert secrets_of(value) == {"abcdef", "123456", "deep-one", "deep-two"}
    assert secrets_of({"password": "abc", "token": True, "secret": None}) == frozenset()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("nothing to hide", "nothing to hide"),
        ("password=abc123, user=me", "password=********, user=me"),
        ('{"api_key": "k-1"}', '{"api_key": "********"}'),
        ("Authorization: Bearer abc.def.ghi", "Authorization: ********"),
        ("sent Bearer abcdefghijk twice", "sent Bearer ******** twice"),
        ("redis://:pw@host:1/0", "redis://:********@host:1/0"),
        ("the secret word", "the secret word"),
    ],
)
def test_redact(text, shown):
    assert redact(text) == shown


def test_redact_value_hides_known_secrets_in_other_values():
    assert redact_value({"log": ["said swordfish!"], "token": "swordfish", "n": 1}, {"swordfish"}) == {
        "log": ["said ********!"],
        "token": "********",
        "n": 1,
    }
