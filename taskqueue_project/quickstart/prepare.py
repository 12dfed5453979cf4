"""Brings the database up to date: migrations, staff user, fixtures. `python -m taskqueue_project.quickstart.prepare`.

A process of its own, because the addresses of the servers must be known before Django reads its settings. Writes one
line of JSON to standard output; the exit code is 4 when a server cannot be reached.
"""

import json
import os
import secrets
import sys
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import django

ADMIN = "admin"
PASSWORD_VARIABLE = "QUICKSTART_ADMIN_PASSWORD"  # noqa: S105 - the name of a variable
UNREACHABLE = 4


def main() -> int:
    """Prepare the database and report. Return an exit code."""
    django.setup()
    problem = _unreachable()
    if problem:
        _report(error=problem)
        return UNREACHABLE
    _report(migrations=_migrate(), fixtures=_load_fixtures(), password=_ensure_admin(os.environ.get(PASSWORD_VARIABLE)))
    return 0


def without_password(url: str) -> str:
    """Return an address that may be shown."""
    parts = urlsplit(url)
    if parts.password is None:
        return url
    return urlunsplit(parts._replace(netloc=parts.netloc.replace(f":{parts.password}@", ":***@")))


def _unreachable() -> str:
    """Say in one line which server does not answer, or return ""."""
    from django.conf import settings  # noqa: PLC0415 - needs django.setup()
    from django.core.cache import cache  # noqa: PLC0415
    from django.db import Error, connection  # noqa: PLC0415

    try:
        connection.ensure_connection()
    except Error as error:
        reason = " ".join(str(error).split())
        return f"PostgreSQL at {without_password(settings.DATABASE_URL)} cannot be reached: {reason}"
    try:
        cache.get("quickstart")
    except Exception as error:  # noqa: BLE001 - which errors there are depends on the client library
        reason = " ".join(str(error).split())
        return f"Redis at {without_password(settings.REDIS_URL)} cannot be reached: {reason}"
    return ""


def _migrate() -> int:
    """Apply what is not applied yet, and return how many migrations that were."""
    from django.core.management import call_command  # noqa: PLC0415 - needs django.setup()
    from django.db import connection  # noqa: PLC0415
    from django.db.migrations.executor import MigrationExecutor  # noqa: PLC0415

    executor = MigrationExecutor(connection)
    plan = executor.migration_plan(executor.loader.graph.leaf_nodes())
    if plan:
        call_command("migrate", verbosity=0, interactive=False)
    return len(plan)


def _load_fixtures() -> int:
    """Load the fixtures once: later starts must not undo what staff have edited.

    Returns how many files were loaded.
    """
    from django.conf import settings  # noqa: PLC0415 - needs django.setup()
    from django.core.management import call_command  # noqa: PLC0415

    from queue_app.models import Queue  # noqa: PLC0415
    from taskqueue_project.demo.tasks import DOCUMENTS  # noqa: PLC0415

    files = sorted((settings.BASE_DIR / "fixtures").glob("*.json"))
    if Queue.objects.filter(pk=DOCUMENTS).exists():
        return 0
    call_command("loaddata", *map(str, files), verbosity=0)
    return len(files)


def _ensure_admin(wanted: str | None) -> str:
    """Create the staff user, or give it the password wanted; return a password that was invented here."""
    from django.contrib.auth import get_user_model  # noqa: PLC0415 - needs django.setup()

    users = get_user_model().objects
    user = users.filter(**{get_user_model().USERNAME_FIELD: ADMIN}).first()
    if user is None:
        invented = "" if wanted else secrets.token_urlsafe(12)
        users.create_superuser(ADMIN, password=wanted or invented)
        return invented
    if wanted and not user.check_password(wanted):
        user.set_password(wanted)
        user.save(update_fields=["password"])
    return ""


def _report(**found: Any) -> None:
    print(json.dumps(found), flush=True)  # noqa: T201 - this is the protocol


if __name__ == "__main__":
    sys.exit(main())
