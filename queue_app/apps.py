"""The Django application."""

from traceback import walk_stack
from typing import Final

from django.apps import AppConfig
from django.conf import settings
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


#: The module that sets Django up for commands of ``manage.py``, most of which never talk to Redis.
_COMMANDS: Final = "django.core.management"


class QueueAppConfig(AppConfig):
    """The app, which registers its checks and signal receivers."""

    name = "queue_app"
    verbose_name = _lazy("Task queue")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Import the modules that register checks and receivers; they need the models."""
        if "default" not in getattr(settings, "TASKS", {}):
            raise ImproperlyConfigured(
                'TASKS has no entry "default", which every @task without a backend uses. Add "default":'
                ' {"BACKEND": "queue_app.backend.TaskQueueBackend", "QUEUES": []}.'
            )
        from queue_app import checks, conf, telemetry  # noqa: F401, PLC0415
        from queue_app.core import rooms  # noqa: PLC0415
        from queue_app.services import receivers  # noqa: F401, PLC0415
        from queue_app.sql import connections  # noqa: PLC0415

        rooms.each("at_start")
        connections.add_keepalives(conf.load()[0].database_alias)
        # The start of a server or a script imports the Redis client, which no request or first enqueue should wait for.
        if not any(frame.f_globals.get("__name__") == _COMMANDS for frame, _line in walk_stack(None)):
            from queue_app.services.notify.index import first  # noqa: PLC0415

            first.prepare()
