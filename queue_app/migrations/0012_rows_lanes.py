"""The index by which ``INDEX = "rows"`` finds the first task of a lane; built while workers go on, so in no transaction."""

from django.db import migrations

#: As in ``queue_app.rows.tables``.
_HASH = """hashtextextended(queue || chr(31) || task_type || chr(31) || "user" || chr(31) || concurrency_key
    || chr(31) || weight::text, hash_array_extended(capabilities, 0))"""
_DROP = "DROP INDEX CONCURRENTLY IF EXISTS taskqueue_lane"


class Migration(migrations.Migration):
    atomic = False
    dependencies = [("queue_app", "0011_rows")]

    operations = [
        migrations.RunSQL(_DROP, _DROP),  # one whose build was broken off
        migrations.RunSQL(
            f"CREATE INDEX CONCURRENTLY taskqueue_lane ON queue_app_task (({_HASH}), priority, queued_at, id)"
            " WHERE status = 'queued'",
            migrations.RunSQL.noop,
        ),
    ]
