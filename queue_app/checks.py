"""System checks of the settings, with stable ids and hints."""

import traceback
from collections.abc import Callable, Iterator, Mapping
from functools import wraps
from importlib.util import find_spec
from typing import Any

from django.apps import apps
from django.conf import settings as django_settings
from django.core.checks import CheckMessage, Error, Tags, Warning, register  # noqa: A004 - Django's name
from django.core.exceptions import ImproperlyConfigured
from django.db import connections, router
from django.db.backends.base.creation import TEST_DATABASE_PREFIX
from django.utils.module_loading import import_string
from psycopg import IsolationLevel

from queue_app import codecs, conf, encryption, hooks, registry
from queue_app.exceptions import IndexOfAnotherDatabase, IndexUnavailable, InvalidTaskData, in_one_line
from queue_app.hooks import callbacks
from queue_app.index.client import address_problem
from queue_app.sql.database import MINIMUM_POSTGRESQL

READ_COMMITTED = "read committed"
#: Values of ``OPTIONS["isolation_level"]``. PostgreSQL treats read uncommitted as read committed.
_ISOLATION: dict[Any, str] = {
    None: READ_COMMITTED,
    IsolationLevel.READ_UNCOMMITTED: READ_COMMITTED,
    IsolationLevel.READ_COMMITTED: READ_COMMITTED,
    IsolationLevel.REPEATABLE_READ: "repeatable read",
    IsolationLevel.SERIALIZABLE: "serializable",
}


def check(*tags: str) -> Callable[[Callable[..., Iterator[CheckMessage]]], Callable[..., list[CheckMessage]]]:
    """Register a generator of messages as a check, which returns a list."""

    def decorate(found: Callable[..., Iterator[CheckMessage]]) -> Callable[..., list[CheckMessage]]:
        @wraps(found)
        def run(**options: Any) -> list[CheckMessage]:
            return list(found(**options))

        return register(*tags)(run)

    return decorate


def _too_strict(alias: str, why: str) -> Error:
    return Error(
        f"The task queue needs the isolation level READ COMMITTED on DATABASES[{alias!r}]: {why}.",
        hint="Under a stricter level, claims and limits do not see concurrent commits, and fail. Keep the level of this"
        " alias, and set a stricter one only in transactions that need it.",
        id="queue_app.E007",
    )


@check("taskqueue")
def check_settings(**_: Any) -> Iterator[CheckMessage]:
    """Report problems of ``TASKQUEUE`` (E001), and contradictory values (E006)."""
    settings, problems = conf.load()
    yield from (Error(str(problem), hint=problem.hint, id="queue_app.E001") for problem in problems)
    if settings.scheduler.leader_seconds <= 2 * settings.scheduler.due_seconds:
        yield Error(
            "TASKQUEUE SCHEDULER.LEADER_SECONDS is not above twice DUE_SECONDS.",
            hint="Raise LEADER_SECONDS, or the leadership lapses between two runs.",
            id="queue_app.E006",
        )


@check("taskqueue")
def check_task_modules(**_: Any) -> Iterator[CheckMessage]:
    """Report task modules of the project that cannot be imported (E023), and names that no app has (W004)."""
    broken = broken_modules()
    for module, error in broken.items():
        yield Error(
            f"The task module {module} cannot be imported: {_raised(error)}",
            hint="Mend it, or install what it imports. Every process of the queue imports it to know its tasks.",
            id="queue_app.E023",
        )
    for name in [] if broken or not has_tasks() else registry.missing_modules():
        yield Warning(
            f"TASKQUEUE TASK_MODULES names {name!r}, and no app in INSTALLED_APPS has a module of this name.",
            hint="Name modules without their app, such as 'tasks' for shop/tasks.py. Workers find no tasks elsewhere.",
            id="queue_app.W004",
        )


def broken_modules() -> dict[str, Exception]:
    """Return the task modules of the project that cannot be imported, and why."""
    return registry.broken_modules() if has_tasks() else {}


def has_tasks() -> bool:
    """Whether the tasks of the project can be known: the settings are valid, and the app is installed."""
    return _is_usable() and apps.is_installed("queue_app")


def _raised(error: Exception) -> str:
    """Return an exception with the place that raised it, in one line."""
    text = f"{type(error).__name__}: {in_one_line(error)}"
    frames = traceback.extract_tb(error.__traceback__)
    return f"{text} ({frames[-1].filename}, line {frames[-1].lineno})" if frames else text


@check("taskqueue")
def check_task_options(**_: Any) -> Iterator[CheckMessage]:
    """Report options of known tasks with which no call could be stored (E024)."""
    if broken_modules() or not has_tasks():
        return
    from queue_app.core.records import NewTask  # noqa: PLC0415 - as the next
    from queue_app.services.enqueue.validate import check_spec  # noqa: PLC0415 - it needs the models

    for task_type in registry.known_types():
        try:
            check_spec(NewTask(task_type=task_type), registry.get(task_type))
        except InvalidTaskData as error:
            yield Error(
                f"No call of the task {task_type} can be stored: {error}",
                hint="Mend the options in its decorator.",
                id="queue_app.E024",
            )


@check("taskqueue")
def check_encryption(**_: Any) -> Iterator[CheckMessage]:
    """Report unusable keys, a missing package, and encrypted tasks without a key (E018)."""
    yield from (Error(text, id="queue_app.E018") for text in encryption.problems())


@check("taskqueue")
def check_callbacks(**_: Any) -> Iterator[CheckMessage]:
    """Report callbacks that do not exist (E019)."""
    if _is_usable() and not broken_modules():
        yield from (Error(text, id="queue_app.E019") for text in callbacks.problems(conf.get().webhooks))


@check("taskqueue")
def check_time_zone(**_: Any) -> Iterator[CheckMessage]:
    """Report a project without time zones (E008)."""
    if not django_settings.USE_TZ:
        hint = "Set USE_TZ = True, the default of Django. Until then the task queue refuses every call."
        yield Error(conf.NEEDS_USE_TZ, hint=hint, id="queue_app.E008")


@check("taskqueue")
def check_database(**_: Any) -> Iterator[CheckMessage]:
    """Report a database other than PostgreSQL (E002), and a stricter isolation level (E007)."""
    alias = conf.load()[0].database_alias
    database = django_settings.DATABASES.get(alias, {})
    engine = database.get("ENGINE", "")
    if "postgresql" in engine or "postgis" in engine:
        level = database.get("OPTIONS", {}).get("isolation_level")
        name = _ISOLATION.get(level, str(level))
        if name != READ_COMMITTED:
            yield _too_strict(alias, f"DATABASES[{alias!r}] sets it to {name}")
    else:
        yield Error(
            f"The task queue needs PostgreSQL 15 or newer, but DATABASES[{alias!r}] uses {engine or 'nothing'}.",
            hint="Use django.db.backends.postgresql, or name another alias in TASKQUEUE['DATABASE_ALIAS'].",
            id="queue_app.E002",
        )


@check("taskqueue")
def check_router(**_: Any) -> Iterator[CheckMessage]:
    """Report a router that writes the rows to another database (E009), and rows in schemas of tenants (E025)."""
    alias = conf.load()[0].database_alias
    written = router.db_for_write(apps.get_model("queue_app", "Task"))
    if written != alias:
        yield Error(
            f"TASKQUEUE DATABASE_ALIAS is {alias!r}, but Django writes the models of queue_app to {written!r}.",
            hint=f"Add a router to DATABASE_ROUTERS that reads and writes the app queue_app in {alias!r}.",
            id="queue_app.E009",
        )
    if any(app.partition(".")[0] == "queue_app" for app in getattr(django_settings, "TENANT_APPS", ())):
        message = "queue_app is in TENANT_APPS: a tenant's tasks would lie in its own schema, where no worker looks."
        hint = "Put queue_app into SHARED_APPS only. One queue then serves all tenants."
        yield Error(message, hint=hint, id="queue_app.E025")


@check(Tags.database)
def check_server(databases: Any = None, **_: Any) -> Iterator[CheckMessage]:
    """Report what the server cannot be used with (E003, E007, E010, E011) or loses (W002).

    Django runs this with ``migrate`` and ``check --database``; workers and schedulers when they start.
    """
    from queue_app.sql import doctor  # noqa: PLC0415 - imports models

    alias = conf.load()[0].database_alias
    if not databases or alias not in databases or check_database():
        return
    with connections[alias].temporary_connection():
        found = doctor.server()
        pooled = doctor.is_pooled() and not connections[alias].settings_dict.get("DISABLE_SERVER_SIDE_CURSORS")
        shared = pooled and doctor.shares_servers_between_transactions()
    name = f"DATABASES[{alias!r}]"
    if found.version < MINIMUM_POSTGRESQL:
        message = f"The task queue needs PostgreSQL 15 or newer; {name} is {'.'.join(map(str, found.version))}."
        yield Error(message, hint="Upgrade the server.", id="queue_app.E003")
        return
    if found.isolation not in {READ_COMMITTED, "read uncommitted"}:
        yield _too_strict(alias, f"the server's default there is {found.isolation}")
    if found.read_only:
        yield Error(
            f"The task queue writes, but {name} is read-only: a standby, or default_transaction_read_only is on.",
            hint="Name the primary server, for example with target_session_attrs=read-write in OPTIONS, or another"
            " alias in TASKQUEUE['DATABASE_ALIAS'].",
            id="queue_app.E010",
        )
    if shared:
        yield Error(
            f"A pooler (PgBouncer) pools transactions in front of {name}, and Django does not know.",
            hint='Set "DISABLE_SERVER_SIDE_CURSORS": True there: otherwise Django looks for its cursors and'
            " prepared statements on another server process.",
            id="queue_app.E011",
        )
    if found.synchronous_commit == "off":
        yield Warning(
            f"synchronous_commit is off on {name}: a crash of the server loses tasks that it confirmed.",
            hint="Switch it on for the project's role: ALTER ROLE … SET synchronous_commit = on. The queue itself"
            " relaxes it where nothing can be lost.",
            id="queue_app.W002",
        )


@check(Tags.database)
def check_owner(databases: Any = None, **_: Any) -> Iterator[CheckMessage]:
    """Report an index that belongs to another database (E014), once both servers answer and all tables are there."""
    from queue_app.services import owner  # noqa: PLC0415 - imports models
    from queue_app.sql import doctor  # noqa: PLC0415 - the same

    alias = conf.load()[0].database_alias
    if not databases or alias not in databases or check_database() or check_redis():
        return
    if connections[alias].settings_dict["NAME"].startswith(TEST_DATABASE_PREFIX):
        return  # of Django's test runner, with the index of the developer; processes still refuse to start
    try:
        if not doctor.unapplied_migrations():
            owner.check_owner()
    except IndexOfAnotherDatabase as error:
        yield Error(owner.without_advice(error), hint=owner.ADVICE, id="queue_app.E014")
    except (IndexUnavailable, ImproperlyConfigured):  # reported by other checks, and by commands when they start
        pass


@check("taskqueue")
def check_redis(**_: Any) -> Iterator[CheckMessage]:
    """Report a ``CACHES`` alias that is missing (E004), lacks django-redis (W001), or has a wrong address (E012).

    Without Redis, report a request stream (E026); with it, libraries that are missing (E027).
    """
    settings = conf.load()[0]
    alias = settings.redis_alias
    cache = django_settings.CACHES.get(alias)
    if conf.way_of(settings) == conf.ROWS:
        if settings.requests.enabled:
            yield Error(
                "TASKQUEUE REQUESTS ENABLED is True, but the request stream is in Redis, and the queue of this project"
                f" does without it (INDEX is {conf.ROWS!r}).",
                hint="Let the services submit over the REST API, or set INDEX to 'redis'.",
                id="queue_app.E026",
            )
    elif cache is None:
        yield Error(
            f"TASKQUEUE REDIS_ALIAS names the cache {alias!r}, which CACHES does not define.",
            hint=f"Add CACHES[{alias!r}] with django_redis.cache.RedisCache.",
            id="queue_app.E004",
        )
    elif not conf.is_django_redis(cache.get("BACKEND", "")):
        yield Warning(
            f"CACHES[{alias!r}] uses {cache.get('BACKEND')}, which cannot connect to the index.",
            hint="Use django_redis.cache.RedisCache, or name another alias in TASKQUEUE['REDIS_ALIAS'].",
            id="queue_app.W001",
        )
    elif not (find_spec("django_redis") and find_spec("redis")):
        yield Error(
            f"CACHES[{alias!r}] is of django-redis, and the packages redis and django-redis are not both installed.",
            hint="Install \"django-priority-taskqueue[redis]\"; or set INDEX to 'rows', which needs PostgreSQL alone.",
            id="queue_app.E027",
        )
    else:
        location = cache.get("LOCATION") or ()
        for text in [location] if isinstance(location, str) else location:
            if (problem := address_problem(text)) is not None:
                yield Error(f"CACHES[{alias!r}] {problem[0]}", hint=problem[1], id="queue_app.E012")


@check("taskqueue")
def check_tasks(**_: Any) -> Iterator[CheckMessage]:
    """Report that no entry of ``TASKS`` uses the queue (W003)."""
    entries = getattr(django_settings, "TASKS", {})
    if not any(_is_queue_backend(entry.get("BACKEND", "")) for entry in entries.values() if isinstance(entry, Mapping)):
        yield Warning(
            "No entry of TASKS uses the task queue, so enqueue() stores nothing in it.",
            hint='Set TASKS = {"default": {"BACKEND": "queue_app.backend.TaskQueueBackend", "QUEUES": []}}.',
            id="queue_app.W003",
        )


def _is_queue_backend(path: str) -> bool:
    try:
        return hasattr(import_string(path), "stores_tasks_in")
    except ImportError:
        return False


def entry_problems(alias: str, options: Mapping[str, Any], queues: Any) -> Iterator[CheckMessage]:
    """Yield the problems of an entry of ``TASKS`` that uses this queue (E005, E020, E021)."""
    where = f"TASKS[{alias!r}]"
    if options:
        message = f"The task queue has no OPTIONS ({', '.join(sorted(map(str, options)))})."
        yield Error(message, hint="Set the settings of the queue in TASKQUEUE.", obj=where, id="queue_app.E005")
    if not apps.is_installed("queue_app"):
        message = "TASKS uses the task queue, but its app is not installed."
        hint = 'Add "queue_app" to INSTALLED_APPS and run migrate.'
        yield Error(message, hint=hint, obj=where, id="queue_app.E020")
        return
    for name in sorted(set(queues or ()), key=str):
        if not _is_queue_name(name):
            message = f"QUEUES names {name!r}, which cannot be the name of a queue."
            hint = (
                "Make QUEUES a list of names with letters, digits, dots, dashes and underscores; [] allows all names."
            )
            yield Error(message, hint=hint, obj=where, id="queue_app.E021")
    if isinstance(queues, str):  # each letter is a valid name
        message = f"QUEUES is the string {queues!r}, so every letter of it is a queue."
        yield Error(message, hint=f"Use [{queues!r}], or [] to allow all names.", obj=where, id="queue_app.E021")


@check("taskqueue")
def check_probes(**_: Any) -> Iterator[CheckMessage]:
    """Report probes of adaptive limits that cannot be imported (E017)."""
    for name, path in conf.load()[0].probes.items():
        found, why = None, ""
        try:
            found = import_string(path)
        except (ImportError, AttributeError, ValueError) as error:
            why = f" ({error})"
        if not callable(found):
            message = f"TASKQUEUE PROBES[{name!r}] is {path!r}, which is no function{why}."
            hint = "Name a function without arguments that returns a load, 1 for a full one, by its dotted path."
            yield Error(message, hint=hint, id="queue_app.E017")


@check("taskqueue")
def check_codecs(**_: Any) -> Iterator[CheckMessage]:
    """Report codecs that cannot be used (E016)."""
    hint = "Name ready codecs, and Enums, dataclasses or subclasses of queue_app.codecs.Codec by their dotted paths."
    yield from (Error(text, hint=hint, id="queue_app.E016") for text in codecs.problems())


@check("taskqueue")
def check_typed_arguments(**_: Any) -> Iterator[CheckMessage]:
    """Report that typeguard is missing while ``TYPED_ARGUMENTS`` asks for it (E022)."""
    if conf.load()[0].typed_arguments and find_spec("typeguard") is None:
        yield Error(
            "TASKQUEUE TYPED_ARGUMENTS needs the package typeguard, so every enqueue of an annotated function fails.",
            hint="Install the extra `typed`, or leave TYPED_ARGUMENTS out.",
            id="queue_app.E022",
        )


@check("taskqueue")
def check_hooks(**_: Any) -> Iterator[CheckMessage]:
    """Report hooks that cannot be imported (E015)."""
    hint = "Name subclasses of queue_app.hooks.Hook by their dotted paths."
    yield from (Error(text, hint=hint, id="queue_app.E015") for text in hooks.problems())


def _is_usable() -> bool:
    """Whether code may ask for the settings; other checks report why not."""
    return not conf.load()[1] and django_settings.USE_TZ


def _is_queue_name(name: object) -> bool:
    from queue_app.services.enqueue.validate import check_queue_name  # noqa: PLC0415 - it needs the models

    try:
        check_queue_name(name)
    except InvalidTaskData:
        return False
    return True
