"""Start-up of commands that need both servers: fail early, in one line, without secrets."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from django.core.checks import run_checks
from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError
from django.db import DatabaseError, OperationalError, connections
from psycopg.errors import UndefinedTable

from queue_app import checks, conf, registry
from queue_app.exceptions import IndexUnavailable
from queue_app.index import get_index, hide_password

EXIT_USAGE = 2
EXIT_UNREACHABLE = 4


class ServerCommand(BaseCommand):
    """A command that refuses wrong settings, and servers that do not answer.

    Only the checks of the queue run, as a worker needs no URLconf or templates; not by Django,
    which would end with the code of a crash and a page of text.
    """

    requires_system_checks: tuple[str, ...] = ()

    def check_settings(self) -> None:
        """Refuse wrong settings, with a line for each."""
        errors = [message for message in run_checks(tags=["taskqueue"]) if message.is_serious()]
        if errors:
            raise CommandError("\n".join(f"{e.msg} {e.hint or ''}".strip() for e in errors), returncode=EXIT_USAGE)

    def prepare(self) -> None:
        """Check PostgreSQL, the tables and Redis; import the task modules."""
        check_postgresql()
        check_redis()
        registry.discover()


def check_redis() -> None:
    """Raise ``CommandError`` unless Redis answers."""
    try:
        get_index().ping()
    except ImproperlyConfigured as error:
        raise CommandError(str(error), returncode=EXIT_USAGE) from None
    except IndexUnavailable as error:
        raise CommandError(f"{error} Start it, or set CACHES (REDIS_URL).", returncode=EXIT_UNREACHABLE) from None


def check_postgresql() -> None:
    """Raise ``CommandError`` unless PostgreSQL answers and has the tables."""
    alias = conf.get().database_alias
    try:
        with connections[alias].cursor() as cursor:
            cursor.execute("SELECT 1 FROM queue_app_indexgeneration")
        too_strict = checks.check_server(databases=[alias])
    except OperationalError as error:
        reason = hide_password(" ".join(str(error).split()))
        raise CommandError(
            f"PostgreSQL at {database_url(connections[alias].settings_dict)} cannot be reached: {reason} "
            "Start it, or set DATABASES (DATABASE_URL).",
            returncode=EXIT_UNREACHABLE,
        ) from None
    except DatabaseError as error:
        reason = hide_password(" ".join(str(error).split()))
        if not isinstance(error.__cause__, UndefinedTable):
            raise CommandError(
                f"PostgreSQL at {database_url(connections[alias].settings_dict)} cannot be used: {reason}",
                returncode=EXIT_UNREACHABLE,
            ) from None
        raise CommandError(
            f"The tables of the task queue are missing in {database_url(connections[alias].settings_dict)}; "
            f"run `manage.py migrate` first. ({reason})",
            returncode=EXIT_UNREACHABLE,
        ) from None
    if too_strict:
        raise CommandError(f"{too_strict[0].msg} {too_strict[0].hint}", returncode=EXIT_USAGE)


def database_url(settings: dict[str, Any]) -> str:
    """Return the address of a database without its password, for messages."""
    user = f"{quote(settings['USER'])}@" if settings.get("USER") else ""
    port = f":{settings['PORT']}" if settings.get("PORT") else ""
    return f"postgresql://{user}{settings.get('HOST') or 'localhost'}{port}/{settings.get('NAME')}"
