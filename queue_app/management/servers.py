"""Check settings and servers before a command starts: errors are one line without secrets."""

import io
import logging
import sys
import threading
from argparse import ArgumentParser
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import quote

from django.core.checks import ERROR, run_checks
from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError
from django.db import DatabaseError, OperationalError, connections
from django.db.backends.base.creation import TEST_DATABASE_PREFIX
from psycopg.errors import UndefinedTable

from queue_app import checks, conf, registry
from queue_app.exceptions import IndexOfAnotherDatabase, IndexUnavailable, in_one_line
from queue_app.index import get_index, hide_password, server_url
from queue_app.index.server import server_facts
from queue_app.logs import console
from queue_app.services.owner import check_owner
from queue_app.services.way import follow
from queue_app.sql.connections import migrate_command, remedy_for

logger = logging.getLogger("taskqueue")

EXIT_USAGE = 2
EXIT_UNREACHABLE = 4


class ServerCommand(BaseCommand):
    """A command that refuses invalid settings and servers that do not answer.

    It runs only the queue's system checks, as a worker needs no URLconf or templates. Django would report a failed
    check with the exit code of a crash and a page of text.
    """

    requires_system_checks: tuple[str, ...] = ()

    def check_settings(self) -> None:
        """Raise ``CommandError`` for invalid settings, with one line each."""
        errors = [message for message in run_checks(tags=["taskqueue"]) if message.is_serious()]
        if errors:
            raise CommandError("\n".join(f"{e.msg} {e.hint or ''}".strip() for e in errors), returncode=EXIT_USAGE)

    def prepare(self) -> None:
        """Check PostgreSQL, its tables, Redis and the caller; import the task modules."""
        check_postgresql()
        try:
            check_redis()
            with _redis_errors():
                check_owner()
        except CommandError as error:
            # The queue has worked before: claims may read the rows until Redis is back.
            if error.returncode != EXIT_UNREACHABLE or not follow().number:
                raise
            logger.warning("%s", error)
        check_caller()
        registry.discover()

    def print_log(self, options: dict[str, Any]) -> None:
        """Print what the process logs, unless the project's LOGGING has handlers for it."""
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(line_buffering=True)  # what tasks print appears at once, also in a container's log
        color = False if options["no_color"] else True if options["force_color"] else None
        console.install(sys.stderr, options["verbosity"], json=options["json"], color=color)


def checked_port(options: dict[str, Any]) -> int | None:
    """Return ``--health-port``. Raises ``CommandError``."""
    port: int | None = options["health_port"]
    if port is not None and not 0 < port < 2**16:
        raise CommandError(f"--health-port is {port}; give a port from 1 to 65535.", returncode=EXIT_USAGE)
    return port


def add_log_options(parser: ArgumentParser) -> None:
    """Declare what a process prints; Django's own ``--verbosity`` has the levels."""
    parser.add_argument(
        "-q", "--quiet", dest="verbosity", action="store_const", const=0, help="print only warnings and errors (-v 0)"
    )
    parser.add_argument("--json", action="store_true", help="print the log as lines of JSON")


def report_eviction() -> None:
    """Log an error if the server may drop parts of the index: limits would be exceeded without a sign."""
    if get_index().way == conf.ROWS:
        return
    try:
        facts = server_facts(get_index())
    except IndexUnavailable:  # a moment later the process says so itself
        return
    if facts.policy != "noeviction":
        from queue_app.diagnose.servers import eviction  # noqa: PLC0415 - few processes need the doctor

        found = eviction(facts)
        logger.error("the maxmemory-policy of Redis is %s. %s", found.message, found.hint)


def addresses() -> dict[str, str]:
    """Return the addresses of the servers, without passwords."""
    settings = conf.get()
    found = {"PostgreSQL": database_url(connections[settings.database_alias].settings_dict)}
    return found if settings.index == conf.ROWS else found | {"Redis": server_url(settings.redis_alias)}


def check_caller() -> None:
    """Raise ``CommandError`` for a caller, such as a test, in whose thread or transaction a process cannot work."""
    if threading.current_thread() is not threading.main_thread():
        message = "The command handles signals, which Python allows in the main thread only. Call it there."
        raise CommandError(message, returncode=EXIT_USAGE)
    if connections[conf.get().database_alias].in_atomic_block:
        message = (
            "The caller has opened a transaction, and workers and schedulers see only what is committed. A test needs"
            " TransactionTestCase, or pytest.mark.django_db(transaction=True)."
        )
        raise CommandError(message, returncode=EXIT_USAGE)


def check_redis() -> None:
    """Raise ``CommandError`` unless Redis answers, or claims read the rows."""
    with suppress(DatabaseError):  # the tables may not be there yet
        follow()
    with _redis_errors():
        get_index().ping()


@contextmanager
def _redis_errors() -> Iterator[None]:
    try:
        yield
    except ImproperlyConfigured as error:
        raise CommandError(str(error), returncode=EXIT_USAGE) from None
    except IndexOfAnotherDatabase as error:
        is_test = connections[conf.get().database_alias].settings_dict["NAME"].startswith(TEST_DATABASE_PREFIX)
        advice = " In a test, use queue_app.testing.override_queue(real=True)." if is_test else ""
        raise CommandError(f"{error}{advice}", returncode=EXIT_USAGE) from None
    except IndexUnavailable as error:
        if "password" in str(error):  # so it runs
            remedy = "Correct the user and password"
        elif "maxmemory" in str(error):
            remedy = "Raise its maxmemory, or find what fills it (redis-cli --bigkeys); or name another server"
        elif "CERTIFICATE_VERIFY_FAILED" in str(error):
            remedy = "Name the certificate of its authority (rediss://…?ssl_ca_certs=/path/ca.pem)"
        else:
            remedy = "Start the server, or correct its address"
        of_rows = conf.get().index == conf.ROWS
        message = _sentence(error) + ("" if of_rows else f" {remedy} in CACHES[{conf.get().redis_alias!r}].")
        raise CommandError(message, returncode=EXIT_UNREACHABLE) from None


def check_postgresql() -> None:
    """Raise ``CommandError`` unless PostgreSQL answers, has the tables and passes the system checks."""
    alias = conf.get().database_alias
    database = connections[alias]
    address = database_url(database.settings_dict)
    try:
        with database.cursor() as cursor:
            cursor.execute("SELECT 1 FROM queue_app_indexgeneration")
        unfit = [found for found in checks.check_server(databases=[database.alias]) if found.level >= ERROR]
    except DatabaseError as error:
        reason = hide_password(in_one_line(error))
        if isinstance(error, OperationalError):
            remedy = remedy_for(reason, alias)
            message = f"PostgreSQL at {address} cannot be reached: {_sentence(reason)} {remedy}"
        elif isinstance(error.__cause__, UndefinedTable):
            message = (
                f"The tables of the task queue are missing in {address}: run `{migrate_command(database.alias)}` first."
            )
        else:
            message = f"PostgreSQL at {address} cannot be used: {reason}"
        raise CommandError(message, returncode=EXIT_UNREACHABLE) from None
    if unfit:
        raise CommandError(f"{unfit[0].msg} {unfit[0].hint}", returncode=EXIT_USAGE)


def _sentence(text: object) -> str:
    return f"{str(text).rstrip('.?')}."


def database_url(settings: dict[str, Any]) -> str:
    """Return the address of a database without its password, for messages."""
    user = f"{quote(settings['USER'])}@" if settings.get("USER") else ""
    port = f":{settings['PORT']}" if settings.get("PORT") else ""
    return f"postgresql://{user}{settings.get('HOST') or 'localhost'}{port}/{settings.get('NAME')}"
