"""The Django application."""

import sys
from typing import Final

from django.apps import AppConfig
from django.core.exceptions import ImproperlyConfigured
from django.utils.translation import gettext_lazy as _lazy

try:
    import psycopg  # noqa: F401 - Django would take psycopg2 instead, and the first statement would fail
except ImportError as error:
    reason = str(error).partition("\n")[0].rstrip(".")
    raise ImproperlyConfigured(
        f"The task queue needs psycopg 3, which cannot be imported ({reason}); psycopg2 does not replace it."
        ' Install it: python -m pip install "psycopg[binary]".'
    ) from None


#: Modules that a web server imports to load the project, and other processes do not.
_SERVERS: Final = frozenset({"django.core.wsgi", "django.core.asgi"})


class QueueAppConfig(AppConfig):
    """The app, which registers its checks and signal receivers."""

    name = "queue_app"
    verbose_name = _lazy("Task queue")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Import the modules that register checks and receivers; they need the models."""
        from queue_app import checks, conf, receivers, telemetry  # noqa: F401, PLC0415
        from queue_app.sql import connections  # noqa: PLC0415

        connections.add_keepalives(conf.load()[0].database_alias)
        if _SERVERS & sys.modules.keys():  # the start of a web server imports the Redis client, not a request
            from queue_app.services.notify.index import first  # noqa: PLC0415

            first.prepare()
