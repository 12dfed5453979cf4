"""Store the declared schedules with ``migrate``."""

from typing import Any

from django.apps import AppConfig
from django.db.models.signals import post_migrate
from django.dispatch import receiver

from queue_app.schedules.declare import synchronise
from queue_app.schedules.sql import are_installed
from queue_app.sql.database import alias


@receiver(post_migrate, dispatch_uid="queue_app.migrated")
def migrated(app_config: AppConfig, using: str, **_: Any) -> None:
    """Store the schedules that the code declares, once the tables are there."""
    is_ours = app_config.name == "queue_app" and using == alias()
    if is_ours and are_installed():
        synchronise()
