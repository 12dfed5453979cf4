"""Mistakes of the first hour, and the one line that each gets: what is wrong, and what to do."""

import asyncio
import re
import subprocess
import sys
import uuid
from datetime import date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from urllib.parse import quote

import pytest
from django.contrib.auth.models import User
from django.core.exceptions import ImproperlyConfigured, SynchronousOnlyOperation
from django.core.management import CommandError, call_command
from django.db import ProgrammingError, connections
from django.db.migrations import Migration, RunPython
from django.db.migrations.state import ProjectState
from django.tasks import task_backends
from django.tasks.exceptions import InvalidTask, TaskResultDoesNotExist

from queue_app import migrations, task
from queue_app.exceptions import InvalidTaskData, UnserializableParameters
from queue_app.index.client import address_problem
from queue_app.index.index import get_index
from queue_app.management.servers import ServerCommand
from tests.integration.app.tasks import add
from tests.support.rows import forget_known_queues

REDIS = {"BACKEND": "django_redis.cache.RedisCache"}


def one_line(error: BaseException) -> str:
    """Return the message, which must be one line."""
    text = str(error)
    assert "\n" not in text
    return text


# -- in code --------------------------------------------------------------------------------------


def in_coroutine():
    async def view():
        add.enqueue(1, 2)

    asyncio.run(view())


def wait_in_coroutine():
    result = add.enqueue(1, 2)

    async def view():
        result.wait(0)

    asyncio.run(view())


def in_shell(module):
    def report():
        """Do nothing."""

    report.__module__, report.__qualname__ = module, "report"
    task(report).enqueue()


NAIVE = datetime(2030, 1, 1)  # noqa: DTZ001 - the mistake
IN_5_MINUTES = "in 5 minutes is django.utils.timezone.now() + timedelta(minutes=5)."
BANDS = "75 and above is critical, 25 to 74 high, -24 to 24 normal, -74 to -25 low, less is background."
CODE = {
    "a model instance": (
        lambda: add.enqueue(User(pk=1), 2),
        UnserializableParameters,
        "args[0] is a django.contrib.auth.models.User, which JSON cannot hold; pass plain strings, numbers, lists",
    ),
    "a time": (lambda: add.enqueue(1, b=NAIVE), UnserializableParameters, "parameters.b is a datetime.datetime"),
    "a Decimal, deep inside": (
        lambda: add.enqueue(1, b={"rows": [1, {"price": Decimal(1)}]}),
        UnserializableParameters,
        "parameters.b.rows[1].price is a decimal.Decimal",
    ),
    "a set": (lambda: add.enqueue(1, b={1}), UnserializableParameters, "parameters.b is a builtins.set"),
    "run_after is a duration": (
        lambda: add.using(run_after=timedelta(minutes=5)),
        InvalidTask,
        f"run_after must be a time with a zone, not datetime.timedelta(seconds=300); {IN_5_MINUTES}",
    ),
    "run_after is a number": (
        lambda: add.using(run_after=60),
        InvalidTask,
        "run_after must be a time with a zone, not 60",
    ),
    "run_after is a date": (
        lambda: add.using(run_after=date(2030, 1, 1)),
        InvalidTask,
        "not datetime.date(2030, 1, 1)",
    ),
    "run_after has no zone": (
        lambda: add.using(run_after=NAIVE),
        InvalidTask,
        "run_after must be an aware datetime. 2030-01-01 00:00:00 has no time zone; django.utils.timezone.make_aware()",
    ),
    "priority is the name of a band": (
        lambda: add.using(priority="high"),
        InvalidTask,
        f"priority must be a whole number between -100 and 100. It is 'high'; {BANDS}",
    ),
    "priority is a bool": (lambda: add.using(priority=True), InvalidTask, "between -100 and 100. It is True"),
    "priority is too high": (
        lambda: add.using(priority=1000),
        InvalidTask,
        f"priority must be a whole number between -100 and 100. It is 1000; {BANDS}",
    ),
    "a queue with a blank": (
        lambda: add.using(queue_name="my mail").enqueue(1, 2),
        InvalidTaskData,
        "'my mail' is not a name: use up to 100 letters, digits, dots, dashes and underscores",
    ),
    "a mistyped option": (
        lambda: task(max_retry=3)(in_shell),
        TypeError,
        "A task has no option 'max_retry'. Did you mean 'max_retries' or 'retry_delay'?",
    ),
    "an option of Celery": (
        lambda: add.using(countdown=5),
        TypeError,
        "A task has no option 'countdown'. Did you mean 'run_after'?",
    ),
    "the queue by its short name": (
        lambda: add.using(queue="mail"),
        TypeError,
        "A task has no option 'queue'. Did you mean 'queue_name'?",
    ),
    "a method of Celery": (lambda: add.delay(1, 2), AttributeError, "A task has no attribute 'delay'. Use enqueue(…)."),
    "bind of Celery": (lambda: task(bind=True), TypeError, "has no option 'bind'. Did you mean 'takes_context'?"),
    "early acknowledgement of Celery": (
        lambda: task(acks_late=True),
        TypeError,
        "A task has no option 'acks_late'. Leave it out: tasks of a dead worker are always queued again.",
    ),
    "the rate of Celery": (
        lambda: task(rate_limit="10/m"),
        TypeError,
        "A task has no option 'rate_limit'. Limit its task type: in the admin, or with `manage.py taskqueue limit`.",
    ),
    "the soft limit of Celery": (
        lambda: task(soft_time_limit=3),
        TypeError,
        "A task has no option 'soft_time_limit'. Did you mean 'timeout'?",
    ),
    "a signature of Celery": (
        lambda: add.s(1),
        AttributeError,
        "A task has no attribute 's'. Use chain, group or Workflow of queue_app.",
    ),
    "a user instead of a name": (
        lambda: add.using(user=User(username="ann")).enqueue(1, 2),
        InvalidTaskData,
        "user must be a string, such as user.get_username().",
    ),
    "wait in a coroutine": (
        wait_in_coroutine,
        SynchronousOnlyOperation,
        "In a coroutine, write `await result.await_(…)`, not wait().",
    ),
    "enqueue in a coroutine": (
        in_coroutine,
        SynchronousOnlyOperation,
        "In a coroutine, write `await task.aenqueue(…)`, not enqueue().",
    ),
    "a nested function": (lambda: task(lambda: 1), InvalidTask, "Task function must be defined at a module level."),
    "an unknown id": (
        lambda: add.get_result(str(uuid.UUID(int=7))),
        TaskResultDoesNotExist,
        "No task has the id 00000000-0000-0000-0000-000000000007; it was purged, or never committed.",
    ),
    "an id of something else": (
        lambda: add.get_result("jPeGnh0bl9feXOJ"),
        TaskResultDoesNotExist,
        "'jPeGnh0bl9feXOJ' is not the id of a task of this queue.",
    ),
}


@pytest.mark.parametrize(("mistake", "error", "message"), CODE.values(), ids=CODE)
def test_a_mistake_in_code(db, mistake, error, message):
    with pytest.raises(error) as caught:
        mistake()
    assert message in one_line(caught.value)


@pytest.mark.parametrize("module", ["__main__", "__console__", "builtins", "django.core.management.commands.shell"])
def test_a_function_of_a_script_or_shell(module, monkeypatch):
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", None, raising=False)  # as without python -m
    with pytest.raises(InvalidTask) as caught:
        in_shell(module)
    assert one_line(caught.value) == (
        "The task report is defined in a script or a shell, where no worker finds it. Move it to a module, such as"
        " tasks.py of an installed app, and import it from there."
    )


def test_a_queue_that_tasks_does_not_allow(settings):
    settings.TASKS = {"default": settings.TASKS["default"] | {"QUEUES": ["default", "mail"]}}
    with pytest.raises(InvalidTask) as caught:
        add.using(queue_name="mial")
    assert one_line(caught.value) == (
        "Queue 'mial' is not valid for backend. TASKS['default'] does not list it. Did you mean 'mail'? Add it to"
        ' QUEUES (default, mail), or set "QUEUES": [] to allow every name.'
    )


@pytest.mark.parametrize("value", [b"\xff", Decimal(1)])
def test_a_value_with_a_codec_names_it(value):
    with pytest.raises(UnserializableParameters) as caught:
        add.enqueue(value, 2)
    assert f"or turn the codec '{type(value).__name__.lower()}' on in TASKQUEUE CODECS." in one_line(caught.value)


@pytest.mark.parametrize(
    ("name", "known"),
    [("Mail", "mail"), ("mial", "mail"), ("mai", "mail"), ("mails", "mail"), ("meil", "mail"), ("mail-12", "mail-2")],
)
def test_a_new_queue_whose_name_is_almost_that_of_another(db, caplog, name, known):
    for queue in (known, "reports", name, name):
        forget_known_queues()
        add.using(queue_name=queue).enqueue(1, 2)
    expected = f"The queue '{name}' is new, and its name is almost that of '{known}'. If that is a typing error,"
    assert [message.startswith(expected) for message in caplog.messages] == [True] * (name != "mail-12")


# -- in the settings and the servers ---------------------------------------------------------------


@pytest.fixture
def not_migrated(settings, override):
    """The default database is one without tables, on the same server."""
    database = connections["default"]
    database.close()
    override(database.settings_dict, NAME="postgres")
    forget_known_queues()
    yield
    database.close()
    forget_known_queues()


@pytest.mark.django_db(transaction=True)
def test_enqueue_without_tables(not_migrated):
    with pytest.raises(ProgrammingError) as caught:
        add.enqueue(1, 2)
    assert one_line(caught.value) == "The tables of the task queue are missing: run `manage.py migrate`."
    assert caught.value.__suppress_context__


@pytest.mark.django_db(transaction=True)
def test_enqueue_in_a_migration_that_runs_before_those_of_the_queue(not_migrated):
    migration = Migration("0007_welcome", "shop")
    migration.operations = [RunPython(lambda *_: add.enqueue(1, 2))]
    with pytest.raises(ProgrammingError) as caught, connections["default"].schema_editor() as editor:
        migration.apply(ProjectState(), editor)
    last = max(path.stem for path in Path(migrations.__path__[0]).glob("0*.py"))
    assert one_line(caught.value) == (
        "This migration enqueues a task before the tables of the task queue are up to date. Add"
        f' ("queue_app", "{last}") to its dependencies.'
    )


SETUP = """
import django
from django.conf import settings

settings.configure(
    INSTALLED_APPS=[{apps}], TASKS={{"{alias}": {{"BACKEND": "queue_app.backend.TaskQueueBackend", "QUEUES": []}}}}
)
django.setup()
from django.tasks import default_task_backend
default_task_backend.check()
"""


@pytest.mark.parametrize(
    ("apps", "alias", "message"),
    [
        (
            "'queue_app'",
            "jobs",
            'TASKS has no entry "default", which every @task without a backend uses. Add "default":',
        ),
        ("", "default", 'its app is not installed: add "queue_app" to INSTALLED_APPS and run migrate.'),
    ],
    ids=["no default", "no app"],
)
def test_half_of_the_settings(apps, alias, message):
    script = SETUP.format(apps=apps, alias=alias)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert message in done.stderr.splitlines()[-1]


def refused() -> str:
    """Return why ``runworker`` and ``runscheduler`` do not start."""

    def start() -> None:
        command = ServerCommand()
        command.check_settings()
        command.prepare()

    with pytest.raises(CommandError) as caught:
        start()
    return one_line(caught.value)


@pytest.mark.django_db(transaction=True)
def test_a_worker_without_tables(not_migrated):
    assert refused().endswith("/postgres: run `manage.py migrate` first.")


@pytest.fixture
def cached_in(settings):
    """Put the index into a cache of its own, as no client of it is kept from other tests."""

    def configure(**cache) -> None:
        alias = f"index-{uuid.uuid4().hex}"
        settings.CACHES = settings.CACHES | {alias: REDIS | cache}
        settings.TASKQUEUE = settings.TASKQUEUE | {"REDIS_ALIAS": alias}

    return configure


def without_alias(text: str) -> str:
    """Return a message with a short name of the cache."""
    return re.sub(r"index-[0-9a-f]{32}", "index", text)


@pytest.mark.parametrize("location", ["127.0.0.1:6379", "me:geheim@127.0.0.1:6379", ["127.0.0.1:6379"]])
def test_an_address_of_redis_without_scheme(cached_in, location):
    cached_in(LOCATION=location)
    message = (
        "CACHES['index'] has the LOCATION '127.0.0.1:6379', which does not begin with redis://, rediss:// or unix://."
        ' Write it like "redis://127.0.0.1:6379/0".'
    )
    assert without_alias(refused()) == message
    with pytest.raises(ImproperlyConfigured) as caught:
        get_index().ping()
    assert without_alias(one_line(caught.value)) == message


@pytest.mark.parametrize("password", ["se/cret", "s@e/cret", "se#cret", "se?cret", "s@e/c:r#e?t"])
def test_a_password_of_redis_that_is_not_percent_encoded(cached_in, password):
    cached_in(LOCATION=f"rediss://me:{password}@127.0.0.1:6379/0?ssl_ca_certs=/etc/ca.pem")
    message = refused()
    assert "whose password contains / ? or #" in message
    assert "%2F" in message
    assert not {part for part in ("cret", "se", "me") if f" {part}" in message or f":{part}" in message}
    for right in (quote(password, safe=""), "plain"):
        assert address_problem(f"rediss://me:{right}@127.0.0.1/0?password=a@b&ssl_ca_certs=/etc/ca.pem") is None


def test_a_redis_that_wants_a_password(db, settings, cached_in):
    cached_in(LOCATION=f"redis://{settings.CACHES['default']['LOCATION'].rpartition('@')[2]}")
    assert "failed (ping): it requires a password, and LOCATION in CACHES has none." in refused()


def test_a_wrong_password_of_redis(db, settings, cached_in):
    cached_in(LOCATION=f"redis://:no@{settings.CACHES['default']['LOCATION'].rpartition('@')[2]}")
    message = refused()
    assert "invalid username-password pair" in message
    assert without_alias(message).endswith("Correct the user and password in CACHES['index'].")


@pytest.mark.django_db(transaction=True)
def test_a_wrong_password_of_postgresql(override):
    database = connections["default"]
    database.close()
    override(database.settings_dict, PASSWORD="no")
    try:
        message = refused()
    finally:
        database.close()
    assert "password authentication failed for user" in message
    assert message.endswith("Correct the user, password and name in DATABASES['default'].")


def test_a_cache_of_another_kind(db, cached_in, settings):
    cached_in(BACKEND="django.core.cache.backends.locmem.LocMemCache")
    settings.TASKQUEUE = settings.TASKQUEUE | {"INDEX": "redis"}
    assert without_alias(refused()) == (
        "The cache 'index' is not served by django_redis.cache.RedisCache, which the task queue needs: set CACHES ="
        ' {\'index\': {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": "redis://127.0.0.1:6379/0"}}.'
    )


def test_the_backend_is_missing_in_tasks(settings, capsys):
    settings.TASKS = {"default": {"BACKEND": "django.tasks.backends.immediate.ImmediateBackend"}}
    assert type(task_backends["default"]).__name__ == "ImmediateBackend"
    call_command("check")
    assert "(queue_app.W003) No entry of TASKS uses the task queue, so enqueue() stores nothing in it." in (
        capsys.readouterr().err
    )


WITHOUT_PSYCOPG = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "psycopg":
            raise ImportError("no pq wrapper available.\\nAttempts made:\\n- libpq library not found")

sys.meta_path.insert(0, Missing())

import django
from django.conf import settings

settings.configure(INSTALLED_APPS=["queue_app"])
django.setup()
"""


def test_psycopg2_alone_is_not_enough():
    done = subprocess.run([sys.executable, "-c", WITHOUT_PSYCOPG], capture_output=True, text=True, check=False)
    assert done.stderr.splitlines()[-1] == (
        "django.core.exceptions.ImproperlyConfigured: The task queue needs psycopg 3, which cannot be imported (no pq"
        ' wrapper available); psycopg2 does not replace it. Install it: python -m pip install "psycopg[binary]".'
    )
