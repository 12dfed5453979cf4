"""The Django application."""

from django.apps import AppConfig


class QueueAppConfig(AppConfig):
    """The app, which registers its checks and signal receivers."""

    name = "queue_app"
    verbose_name = "Task queue"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Import the modules that register checks and receivers; they need the models."""
        from queue_app import checks, receivers, telemetry  # noqa: F401, PLC0415
        from queue_app.sql import infinity  # noqa: F401, PLC0415
