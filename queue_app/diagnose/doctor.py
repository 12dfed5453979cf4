"""Examine settings, servers, processes and queues; nothing is changed.

Each check yields what it finds. A check whose server does not answer is skipped; the server is reported instead.
"""

import logging
import resource
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Final, NamedTuple

from django.apps import apps
from django.conf import settings
from django.core.checks import ERROR, WARNING, run_checks
from django.core.exceptions import ImproperlyConfigured
from django.core.management import get_commands
from django.db import DatabaseError, InterfaceError, connections

from queue_app import conf
from queue_app.core import rooms
from queue_app.core.reasons import Finding, Level, fail, ok, warn
from queue_app.diagnose import servers, work
from queue_app.diagnose.servers import is_redis_in_force
from queue_app.exceptions import IndexUnavailable, TaskQueueError, in_one_line
from queue_app.index import hide_password, redis_index
from queue_app.services.way import follow
from queue_app.sql import doctor as rows
from queue_app.sql.connections import remedy_for
from queue_app.sql.database import fetch_all

#: The logger of the queue. It logs the failure that ends a task at the level ERROR.
LOGGER: Final = "taskqueue"
#: A process needs some dozens for itself, and a slot a session, files of its task and perhaps a socket to its process.
MIN_OPEN_FILES: Final = 256


def check_settings() -> Iterator[Finding]:
    """Report the messages of the queue's system checks."""
    messages = run_checks(tags=["taskqueue"])
    for message in messages:
        level = fail if message.level >= ERROR else warn
        if message.level >= WARNING:
            yield level("settings", f"{message.msg} ({message.id})", message.hint or "")
    if not messages:
        yield ok("settings", "the system checks find nothing")


def check_cache_alias() -> Iterator[Finding]:
    """Report other users of the index's Redis database: clearing it as a cache clears the index."""
    if conf.way_of(conf.load()[0]) == conf.ROWS:
        return
    alias = conf.load()[0].redis_alias
    location = settings.CACHES.get(alias, {}).get("LOCATION")
    others = [name for name, cache in settings.CACHES.items() if name != alias and cache.get("LOCATION") == location]
    sessions = "cache" in settings.SESSION_ENGINE and getattr(settings, "SESSION_CACHE_ALIAS", "default") == alias
    if others:
        yield warn(
            "cache alias",
            f"the index shares its database with the cache {', '.join(map(repr, others))}",
            "Give the index its own database number: clearing that cache (FLUSHDB) empties the index, and no task is"
            " claimed until the scheduler has rebuilt it.",
        )
    elif sessions:
        yield warn(
            "cache alias",
            f"the sessions are stored in the cache {alias!r}, which holds the index",
            "Name another alias in SESSION_CACHE_ALIAS, or in TASKQUEUE['REDIS_ALIAS'].",
        )
    else:
        yield ok("cache alias", f"the index uses the cache {alias!r}; cache.clear() there would empty the index")


def check_commands() -> Iterator[Finding]:
    """Report a command of another app that hides one of the queue's: channels has a ``runworker``."""
    for name in ("runworker", "runscheduler", "taskqueue"):
        app = get_commands().get(name)
        app_name = app if isinstance(app, str) else type(app).__module__.split(".", maxsplit=1)[0]
        if app_name != "queue_app":
            yield fail(
                "commands",
                f"manage.py {name} is the command of {app_name}, not of the queue",
                f'Put "queue_app" before "{app_name}" in INSTALLED_APPS.',
            )
            return
    hidden = "; the runworker of channels is hidden" if apps.is_installed("channels") else ""
    yield ok("commands", f"runworker, runscheduler and taskqueue are the queue's{hidden}")


def check_open_files() -> Iterator[Finding]:
    """Report a low limit of open files, which sockets count to."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if limit != resource.RLIM_INFINITY and limit < MIN_OPEN_FILES:
        yield warn(
            "open files",
            f"a process that is started like this one may open {limit}, and each slot of a worker may need several",
            "Raise the limit: `ulimit -n 1024` in the shell, LimitNOFILE= in the systemd unit, or --ulimit nofile=1024"
            " for the container.",
        )
    else:
        yield ok("open files", f"a process may open {'any number' if limit == resource.RLIM_INFINITY else limit}")


def check_logging() -> Iterator[Finding]:
    """Report settings in LOGGING that hide failures of tasks."""
    logger = logging.getLogger(LOGGER)
    record = logger.makeRecord(LOGGER, logging.ERROR, "", 0, "a task failed", (), None)
    handlers = list(_handlers(logger))
    if logger.disabled:
        yield fail(
            "logging",
            f"LOGGING switches the logger {LOGGER!r} off, so failures of tasks are not logged",
            'Set "disable_existing_loggers": False in LOGGING.',
        )
    elif not logger.isEnabledFor(logging.ERROR) or not logger.filter(record):
        yield fail(
            "logging",
            f"LOGGING lets the logger {LOGGER!r} log nothing of the level ERROR, so failures of tasks are not logged",
            f"Set the level of {LOGGER!r} to INFO in LOGGING, and remove filters that refuse its records.",
        )
    elif not handlers:
        yield ok("logging", "LOGGING has no handler for the queue; runworker and runscheduler print on the terminal")
    elif not any(handler.level <= logging.ERROR and handler.filter(record) for handler in handlers):
        yield fail(
            "logging",
            f"no handler in LOGGING takes errors of the logger {LOGGER!r}, so failures of tasks are not logged",
            f"Add a handler of the level INFO for {LOGGER!r} or the root logger, such as logging.StreamHandler.",
        )
    else:
        yield ok("logging", "LOGGING has a handler for failures of tasks")


def _handlers(logger: logging.Logger | None) -> Iterator[logging.Handler]:
    """Yield the handlers that get the logger's records, without handlers that drop every record."""
    while logger is not None:
        yield from (handler for handler in logger.handlers if not isinstance(handler, logging.NullHandler))
        logger = logger.parent if logger.propagate else None


class Check(NamedTuple):
    """A check, and what it needs: the servers that it asks, the index in force, and readable tables of the queue."""

    run: Callable[[], Iterable[Finding]]
    database: bool = False
    redis: bool = False
    in_force: bool = False
    tables: bool = False


CHECKS: tuple[Check, ...] = (
    Check(check_settings),
    Check(check_cache_alias),
    Check(check_commands),
    Check(check_logging),
    Check(servers.check_server, database=True),
    Check(servers.check_migrations, database=True),
    Check(servers.check_pooler, database=True),
    Check(servers.check_jit, database=True),
    Check(check_open_files),
    Check(servers.check_redis, redis=True),
    Check(servers.check_clocks, database=True, redis=True),
    Check(work.check_way, database=True, tables=True),
    Check(work.check_system, database=True, in_force=True, tables=True),
    Check(work.check_index, database=True, in_force=True, tables=True),
    Check(work.check_scheduler, database=True, tables=True),
    Check(work.check_stalls, database=True, in_force=True, tables=True),
    Check(work.check_maintenance, database=True, tables=True),
    *(Check(check, database=True, tables=True) for check in rooms.each("findings")),
    Check(work.check_workers, database=True, tables=True),
    Check(work.check_queues, database=True, in_force=True, tables=True),
    Check(work.check_agreement, database=True, in_force=True, tables=True),
    Check(work.check_deaths, database=True, tables=True),
    Check(work.check_advice, database=True, tables=True),
    Check(servers.check_snapshots, database=True),
    Check(servers.check_tables, database=True, tables=True),
)


def examine() -> Iterator[Finding]:
    """Run every check whose servers answer, and whose tables exist and are not locked; yield the findings.

    If claims use a Redis that refuses writes, no index can be built: only the refusal is reported. While they read the
    rows, checks ask the index in the rows. If a table is locked, a check that reads it would wait as long as everybody
    else does: only the lock is reported. With a wrong setting of the queue, no other check can run.
    """
    if conf.load()[1]:
        yield from check_settings()
        return
    database = list(_database_failure())
    has_tables = bool(database) or rows.has_tables()
    if not database and has_tables:
        with suppress(DatabaseError):  # a migration is missing, which is reported below
            follow()
    redis = list(_redis_failure())
    refused = [] if redis else list(servers.check_writes())
    locked = [] if database else list(servers.check_locks())
    yield from (*database, *redis, *refused, *locked)
    index = [*redis, *refused] if is_redis_in_force() else database
    server = redis if conf.get().index == conf.REDIS else database
    for check in CHECKS:
        if (check.database and database) or (check.redis and server) or (check.in_force and index):
            continue
        if check.tables and (not has_tables or any(finding.level is Level.FAIL for finding in locked)):
            continue
        try:
            yield from check.run()
        except (DatabaseError, InterfaceError, TaskQueueError, ImproperlyConfigured) as error:
            name = check.run.__name__.removeprefix("check_").replace("_", " ")
            yield fail(name, f"the check failed: {_line(error)}", "See the findings above.")


def _database_failure() -> Iterator[Finding]:
    try:
        fetch_all("SELECT 1")
    except (DatabaseError, InterfaceError, ImproperlyConfigured) as error:
        alias = conf.load()[0].database_alias
        if alias in connections:
            connections[alias].close()
        yield fail("postgresql", f"does not answer: {_line(error)}", remedy_for(str(error), alias))


def _redis_failure() -> Iterator[Finding]:
    if conf.way_of(conf.load()[0]) == conf.ROWS:
        return
    try:
        redis_index().ping()
    except (IndexUnavailable, ImproperlyConfigured) as error:
        alias = conf.load()[0].redis_alias
        level = Level.FAIL if is_redis_in_force() else Level.WARN
        hint = f"Start it, or correct CACHES[{alias!r}]."
        yield Finding("redis", level, f"does not answer: {_line(error)}", hint)


def _line(error: Exception) -> str:
    return hide_password(in_one_line(error))
