"""The rows as the migrations leave them."""

from importlib import import_module

from django.apps import apps
from django.db import connection

from queue_app.services.enqueue import forget_known_queues

TABLES = (
    "queue_app_task",
    "queue_app_taskpayload",
    "queue_app_taskresult",
    "queue_app_taskattempt",
    "queue_app_deadletter",
    "queue_app_replayoperation",
    "queue_app_operation",
    "queue_app_worker",
    "queue_app_queue",
    "queue_app_queuestats",
    "queue_app_maintenancejob",
    "queue_app_prioritypolicy",
    "queue_app_runtimesettings",
    "queue_app_indexgeneration",
)


def reset_rows() -> None:
    """Empty the queue's tables and put the rows of the migration back."""
    with connection.cursor() as cursor:
        cursor.execute(";".join(f"DELETE FROM {table}" for table in TABLES))  # noqa: S608 - names from above
    with connection.schema_editor() as editor:
        import_module("queue_app.migrations.0002_defaults").create_rows(apps, editor)
    forget_known_queues()
