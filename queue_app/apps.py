"""The Django application."""

from __future__ import annotations

from django.apps import AppConfig


class QueueAppConfig(AppConfig):
    """Register checks and the listeners that carry edits of policies to the index."""

    name = "queue_app"
    verbose_name = "Task queue"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Import what registers itself, now that the models exist."""
        from queue_app import checks, receivers, telemetry  # noqa: F401, PLC0415
