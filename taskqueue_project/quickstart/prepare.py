"""Prepare the database: migrations, staff user, fixtures. `python -m taskqueue_project.quickstart.prepare`.

A separate process, because Django's settings need the addresses of the servers. Writes one line of JSON to standard
output; the exit code is 4 when a server cannot be reached.
"""

# ruff: noqa: E402 - Django's parts are imported once it is set up

import json
import os
import secrets
import sys
from typing import Any

import django

django.setup()

from django.conf import settings
from django.contrib.auth import get_user_model
from django.core.management import CommandError, call_command
from django.db import Error, connection
from django.db.migrations.executor import MigrationExecutor

from queue_app.exceptions import in_one_line
from queue_app.index import hide_password
from queue_app.management.servers import check_redis
from queue_app.models import Queue
from taskqueue_project.demo.tasks import DOCUMENTS

from . import ADMIN, PASSWORD_VARIABLE, ExitCode


def main() -> int:
    """Prepare the database; return an exit code."""
    problem = _unreachable()
    if problem:
        _report(error=problem)
        return ExitCode.SERVER_UNREACHABLE
    _report(migrations=_migrate(), fixtures=_load_fixtures(), password=_ensure_admin(os.environ.get(PASSWORD_VARIABLE)))
    return 0


def _unreachable() -> str:
    """Return which server does not answer, in one line, or ""."""
    try:
        connection.ensure_connection()
        check_redis()
    except Error as error:
        reason = in_one_line(error)
        return hide_password(f"PostgreSQL at {settings.DATABASE_URL} cannot be reached: {reason}")
    except CommandError as error:
        return str(error)
    return ""


def _migrate() -> int:
    """Apply the unapplied migrations; return their number."""
    executor = MigrationExecutor(connection)
    plan = executor.migration_plan(executor.loader.graph.leaf_nodes())
    if plan:
        call_command("migrate", verbosity=0, interactive=False)
    return len(plan)


def _load_fixtures() -> int:
    """Load the fixtures at the first start only, as staff may edit the rows later; return the number of files."""
    files = sorted((settings.BASE_DIR / "fixtures").glob("*.json"))
    if Queue.objects.filter(pk=DOCUMENTS).exists():
        return 0
    call_command("loaddata", *map(str, files), verbosity=0)
    return len(files)


def _ensure_admin(wanted: str | None) -> str:
    """Create the staff user, or set its password to ``wanted``; return the password if it is a random one."""
    users = get_user_model().objects
    user = users.filter(**{get_user_model().USERNAME_FIELD: ADMIN}).first()
    if user is None:
        random = "" if wanted else secrets.token_urlsafe(12)
        users.create_superuser(ADMIN, password=wanted or random)
        return random
    if wanted and not user.check_password(wanted):
        user.set_password(wanted)
        user.save(update_fields=["password"])
    return ""


def _report(**found: Any) -> None:
    print(json.dumps(found), flush=True)  # noqa: T201 - the session reads it


if __name__ == "__main__":
    sys.exit(main())
