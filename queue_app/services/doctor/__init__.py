"""Examine an installation: settings, servers, processes, queues. Changes nothing.

Each check looks at one thing and yields what it finds; one that cannot look, as its server
does not answer, is not run, and the server is what is reported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from django.core.exceptions import ImproperlyConfigured
from django.db import DatabaseError, InterfaceError, connections

from queue_app import conf
from queue_app.core.finding import Finding, Level, fail
from queue_app.exceptions import IndexUnavailable, TaskQueueError
from queue_app.index import get_index, hide_password
from queue_app.services.doctor import project, servers, work
from queue_app.sql.database import fetch_all

__all__ = ["CHECKS", "Finding", "Level", "examine"]


class Check(NamedTuple):
    """A check, and the servers that it asks."""

    look: Callable[[], Iterable[Finding]]
    database: bool = False
    redis: bool = False


CHECKS: tuple[Check, ...] = (
    Check(project.check_settings),
    Check(project.check_cache_alias),
    Check(project.check_commands),
    Check(servers.check_server, database=True),
    Check(servers.check_migrations, database=True),
    Check(servers.check_pooler, database=True),
    Check(servers.check_redis, redis=True),
    Check(servers.check_clocks, database=True, redis=True),
    Check(work.check_index, database=True, redis=True),
    Check(work.check_scheduler, redis=True),
    Check(work.check_maintenance, database=True),
    Check(work.check_workers, database=True),
    Check(work.check_queues, database=True, redis=True),
    Check(work.check_agreement, database=True, redis=True),
    Check(work.check_deaths, database=True),
    Check(servers.check_snapshots, database=True),
    Check(servers.check_tables, database=True),
)


def examine() -> Iterator[Finding]:
    """Run every check that can be run; yield what each finds."""
    database, index = list(_database()), list(_index())
    yield from (*database, *index)
    for check in CHECKS:
        if (check.database and database) or (check.redis and index):
            continue
        try:
            yield from check.look()
        except (DatabaseError, InterfaceError, TaskQueueError, ImproperlyConfigured) as error:
            name = check.look.__name__.removeprefix("check_").replace("_", " ")
            yield fail(name, f"cannot be looked at: {_line(error)}", "See the findings above.")


def _database() -> Iterator[Finding]:
    try:
        fetch_all("SELECT 1")
    except (DatabaseError, InterfaceError, ImproperlyConfigured) as error:
        alias = conf.load()[0].database_alias
        if alias in connections:
            connections[alias].close()
        yield fail("postgresql", f"does not answer: {_line(error)}", "Start it, or set DATABASES (DATABASE_URL).")


def _index() -> Iterator[Finding]:
    try:
        get_index().ping()
    except (IndexUnavailable, ImproperlyConfigured) as error:
        yield fail("redis", f"does not answer: {_line(error)}", "Start it, or set CACHES (REDIS_URL).")


def _line(error: Exception) -> str:
    return hide_password(" ".join(str(error).split()))
