"""The project's settings, as this process sees them; no server is asked."""

from __future__ import annotations

from collections.abc import Iterator

from django.apps import apps
from django.conf import settings
from django.core.checks import ERROR, WARNING, run_checks
from django.core.management import get_commands

from queue_app import conf
from queue_app.core.finding import Finding, fail, ok, warn


def check_settings() -> Iterator[Finding]:
    """Report what the system checks of the queue report."""
    messages = run_checks(tags=["taskqueue"])
    for message in messages:
        level = fail if message.level >= ERROR else warn
        if message.level >= WARNING:
            yield level("settings", f"{message.msg} ({message.id})", message.hint or "")
    if not messages:
        yield ok("settings", "the system checks find nothing")


def check_cache_alias() -> Iterator[Finding]:
    """Report what else uses the database of the index: whoever clears it as a cache clears the index."""
    alias = conf.load()[0].redis_alias
    location = settings.CACHES.get(alias, {}).get("LOCATION")
    others = [name for name, cache in settings.CACHES.items() if name != alias and cache.get("LOCATION") == location]
    sessions = "cache" in settings.SESSION_ENGINE and getattr(settings, "SESSION_CACHE_ALIAS", "default") == alias
    if others:
        yield warn(
            "cache alias",
            f"the index shares its database with the cache {', '.join(map(repr, others))}",
            "Give the index a database number of its own: clearing that cache (FLUSHDB) empties the index, which is"
            " then rebuilt, and claims wait meanwhile.",
        )
    elif sessions:
        yield warn(
            "cache alias",
            f"the sessions live in the cache {alias!r}, where the index is",
            "Name another alias in SESSION_CACHE_ALIAS, or in TASKQUEUE['REDIS_ALIAS'].",
        )
    else:
        yield ok("cache alias", f"the index uses the cache {alias!r}; cache.clear() there would empty it")


def check_commands() -> Iterator[Finding]:
    """Report another app's ``runworker``: channels has a command of that name."""
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
    beside = " (channels has a runworker too, which is hidden)" if apps.is_installed("channels") else ""
    yield ok("commands", f"runworker, runscheduler and taskqueue are the queue's{beside}")
