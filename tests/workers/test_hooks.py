"""Hooks: metadata that travel with a task, vetoes, wrapped runs, and reactions to the end."""

import asyncio
import logging
import sys
from dataclasses import replace
from types import SimpleNamespace
from zoneinfo import ZoneInfo

import pytest
from asgiref.sync import async_to_sync
from django.core.exceptions import ImproperlyConfigured
from django.tasks import default_task_backend
from django.tasks.exceptions import InvalidTask
from django.utils import timezone, translation

from queue_app import Unique, chain, conf, task
from queue_app.checks import check_hooks
from queue_app.core.records import NewTask
from queue_app.core.states import Status
from queue_app.exceptions import InvalidTaskData, Veto
from queue_app.hooks.ready import ContextVariables, Sentry, Structlog
from queue_app.models import Task, TaskAttempt, TaskPayload, TaskResult
from queue_app.registry import type_of
from queue_app.services.enqueue.store import submit
from queue_app.services.lifecycle.actions import run_again
from queue_app.testing import drain
from queue_app.workers.executor import Executor
from tests.support.engine import status
from tests.workers import hooked
from tests.workers.hooked import guarded, hum, plain, say, seen, tenant
from tests.workers.test_executor import claimed


@pytest.fixture(autouse=True)
def clean():
    seen.clear()
    token = tenant.set("acme")
    yield
    tenant.reset(token)
    seen.clear()


@pytest.fixture
def of_project(settings):
    """Set the hooks of the project."""

    def use(*paths: str) -> None:
        settings.TASKQUEUE = {**settings.TASKQUEUE, "HOOKS": list(paths)}

    return use


def metadata_of(task_id) -> dict | None:
    return TaskPayload.objects.get(pk=task_id).metadata


def value_of(task_id):
    return TaskResult.objects.get(pk=task_id).value


# -- enqueue -----------------------------------------------------------------------------------


def test_metadata_travel_with_the_task(hire):
    result = say.enqueue("hello")
    assert metadata_of(result.id) == {"tenant": "acme"}
    tenant.set("other")
    hire().until_empty()
    assert value_of(result.id).startswith("hello acme")
    assert tenant.get() == "other"
    assert seen == [("in", "tenant", 1), ("out", "tenant"), ("succeeded", {"tenant": "acme"})]


def test_every_way_to_enqueue_asks_the_hooks(engine):
    made = default_task_backend.enqueue_many(say, [(("a",), {}), ((), {"word": "b"})])
    submitted = submit(NewTask(task_type=type_of(say), parameters={"word": "c"}))
    delayed = say.using(idempotency_key="k").enqueue("d")
    unique = say.using(unique=True).enqueue("e")
    flow_id = chain((say, "f"), (say, "g")).enqueue("words")
    ids = [*[result.id for result in made], submitted.id, delayed.id, unique.id]
    ids += Task.objects.filter(workflow_id=flow_id).values_list("id", flat=True)
    assert [metadata_of(task_id) for task_id in ids] == [{"tenant": "acme"}] * 7
    assert metadata_of(plain.enqueue("f").id) is None


def test_a_veto_stores_nothing(engine):
    with pytest.raises(Veto, match="no plan for this"):
        say.enqueue(word="forbidden")
    with pytest.raises(Veto):
        default_task_backend.enqueue_many(say, [((), {"word": "a"}), ((), {"word": "forbidden"})])
    assert not Task.objects.exists()


def test_a_coroutine_may_enqueue_with_coroutine_hooks(engine):
    result = async_to_sync(hum.aenqueue)("la")
    assert metadata_of(result.id) == {"tenant": "acme", "from": "a coroutine"}


@pytest.mark.parametrize(
    ("function", "message"),
    [(hooked.stores_much, "the limit is 8192"), (hooked.stores_objects, r"metadata\.when is a builtins\.object")],
)
def test_metadata_must_be_small_plain_json(engine, function, message):
    with pytest.raises(InvalidTaskData, match=message):
        function.enqueue()


def test_a_hook_that_passes_all_metadata_on_passes_no_callback_and_no_version_on(engine, monkeypatch):
    """As one that continues the metadata of the running task; a text of another type there would stop its end."""

    def everything(_hook, call):
        call.metadata = {"tenant": "acme", "on_success": 5, "on_failure": "shop.tasks.tell", "task_version": 9}

    monkeypatch.setattr(hooked.Tenant, "enqueue", everything)
    assert metadata_of(say.enqueue("a").id) == {"tenant": "acme"}
    monkeypatch.setattr(hooked.Tenant, "enqueue", lambda _hook, call: setattr(call, "metadata", None))
    with pytest.raises(InvalidTaskData, match="must stay a dict"):
        say.enqueue("b")


def test_a_copy_keeps_the_metadata_of_its_original(engine):
    first = say.enqueue("a")
    tenant.set("staff")
    assert metadata_of(run_again(first.id).id) == {"tenant": "acme"}


def test_a_replaced_task_gets_the_newest_metadata(engine):
    newest = say.using(unique=Unique(by=(), on_conflict="replace"))
    first = newest.enqueue("a")
    tenant.set("other")
    assert newest.enqueue("b").id == first.id
    assert metadata_of(first.id) == {"tenant": "other"}


# -- run ---------------------------------------------------------------------------------------


def test_hooks_of_the_project_come_first_and_wrap_all_tasks(hire, of_project):
    of_project("tests.workers.hooked.Tenant", "queue_app.hooks.ready.Locale")
    with translation.override("de"), timezone.override(ZoneInfo("Asia/Tokyo")):
        result = plain.enqueue("hello")
    assert metadata_of(result.id) == {"tenant": "acme", "language": "de", "time_zone": "Asia/Tokyo"}
    hire().until_empty()
    assert value_of(result.id) == "hello de Asia/Tokyo"


def test_a_task_from_before_the_hook_has_the_language_of_the_project(hire, of_project):
    result = plain.enqueue("hello")
    of_project("queue_app.hooks.ready.Locale")
    hire().until_empty()
    assert value_of(result.id) == "hello en UTC"


def test_an_unknown_time_zone_is_ignored(hire, of_project):
    of_project("queue_app.hooks.ready.Locale")
    result = plain.enqueue("hello")
    TaskPayload.objects.update(metadata={"time_zone": "Mars/Base"})
    hire().until_empty()
    assert status(result.id) == Status.COMPLETED


def test_coroutine_functions_get_asynchronous_hooks(engine):
    outcome = asyncio.run(Executor(None).arun(held(hum, word="la", metadata='{"tenant": "acme"}')))
    assert outcome.result == '"la acme"'
    assert seen == [("in", "tenant", 3), ("in", "asynchronous"), ("out", "asynchronous"), ("out", "tenant")]


def held(function, *, metadata: str, **parameters):
    attempt = claimed(function, **parameters)
    attempt.task = replace(attempt.task, metadata=metadata)
    return attempt


def test_a_veto_of_the_run_ends_the_task_without_a_retry(hire):
    result = guarded.enqueue()
    hire().until_empty()
    assert status(result.id) == Status.FAILED
    assert TaskAttempt.objects.get().message == "not on a Sunday"
    assert seen == []


def test_reactions_to_each_end(hire):
    say.enqueue("a", fail="retry")
    hire().until_empty()
    say.using(max_retries=0).enqueue("a", fail="dead")
    hire().until_empty()
    ends = [each for each in seen if each[0] not in {"in", "out"}]
    assert ends == [("retried", "retry", 30.0), ("died", "dead")]


def test_a_failing_reaction_is_logged_and_changes_nothing(hire, caplog):
    caplog.set_level(logging.ERROR, "taskqueue")
    result = hum.enqueue("la")
    hire().until_empty()
    assert status(result.id) == Status.COMPLETED
    assert "told" in seen
    assert "The hook Asynchronous failed after task" in caplog.text


# -- ready hooks -------------------------------------------------------------------------------


def test_context_variables(engine):
    variable = hooked.tenant

    class Call(SimpleNamespace):
        metadata: dict

    call, hook = Call(metadata={}), ContextVariables({"tenant": variable})
    hook.enqueue(call)
    assert call.metadata == {"tenant": "acme"}
    variable.set("other")
    with hook.run(call):
        assert variable.get() == "acme"
    assert variable.get() == "other"


class FakeSentry:
    """The part of ``sentry_sdk`` that the hook uses."""

    def __init__(self) -> None:
        self.tags, self.errors = {}, []

    def isolation_scope(self):
        return self

    def __enter__(self):
        return self

    def __exit__(self, *_error):
        return False

    def set_transaction_name(self, name):
        self.tags["name"] = name

    def set_tag(self, name, value):
        self.tags[name] = value

    def capture_exception(self, error):
        self.errors.append(str(error))


def test_sentry_hears_of_errors_but_not_of_retries_that_a_task_asks_for(engine, monkeypatch):
    sentry = FakeSentry()
    monkeypatch.setitem(sys.modules, "sentry_sdk", sentry)
    hook = Sentry()
    call = SimpleNamespace(task_type="shop.pay", id=1, queue="default", attempt=2)
    for error in (ValueError("broken"), Veto("no")):
        with pytest.raises(type(error)), hook.run(call):
            raise error
    assert sentry.errors == ["broken"]
    assert sentry.tags == {
        "name": "shop.pay",
        "taskqueue.task_id": "1",
        "taskqueue.queue": "default",
        "taskqueue.attempt": "2",
    }


def test_ready_hooks_do_nothing_without_their_packages(engine):
    call = SimpleNamespace(metadata={}, id=1, task_type="a", queue="q", attempt=1)
    Structlog().enqueue(call)
    assert call.metadata == {}
    for hook in (Structlog(), Sentry()):
        with hook.run(call):
            pass


# -- declarations ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("Tenant", "hooks must be a list"),
        ([object()], "is no subclass or instance of queue_app.hooks.Hook"),
        (["nowhere.Hook"], "cannot be imported"),
    ],
)
def test_a_task_refuses_what_is_no_hook(given, message):
    def function() -> None: ...

    with pytest.raises(InvalidTask, match=message):
        task(hooks=given)(function)


def test_a_check_names_a_hook_that_cannot_be_imported(of_project):
    of_project("tests.workers.hooked.Tenant", "tests.workers.hooked.tenant", "nowhere.Hook")
    found = check_hooks()
    assert [problem.id for problem in found] == ["queue_app.E015"] * 2
    with pytest.raises((ImproperlyConfigured, InvalidTaskData)):
        plain.enqueue("a")
    assert conf.get().hooks[0] == "tests.workers.hooked.Tenant"


# -- in tests ---------------------------------------------------------------------------------


def test_hooks_work_in_tests(testing_backend):
    result = say.enqueue("hello")
    with pytest.raises(Veto):
        say.enqueue(word="forbidden")
    say.using(max_retries=0).enqueue("a", fail="dead")
    tenant.set("other")
    drain()
    result.refresh()
    assert result.return_value.startswith("hello acme")
    assert [each for each in seen if each[0] not in {"in", "out"}] == [
        ("succeeded", {"tenant": "acme"}),
        ("died", "dead"),
    ]
