"""The rows that exist once, the policies of the bands, and how the hot table is vacuumed."""

from django.db import migrations

# band: (max_retries, timeout in seconds, promoted after seconds)
POLICIES = {0: (5, 300, None), 1: (5, 300, None), 2: (3, 600, 1200), 3: (2, 900, 600), 4: (2, 900, 600)}


def create_rows(apps, schema_editor):
    database = schema_editor.connection.alias
    policy = apps.get_model("queue_app", "PriorityPolicy").objects.using(database)
    for band, (max_retries, timeout, promote_after) in POLICIES.items():
        policy.get_or_create(
            priority=band,
            defaults={
                "max_retries": max_retries,
                "timeout_seconds": timeout,
                "promote_after_seconds": promote_after,
            },
        )
    apps.get_model("queue_app", "RuntimeSettings").objects.using(database).get_or_create(pk=1)
    apps.get_model("queue_app", "IndexGeneration").objects.using(database).get_or_create(pk=1)
    apps.get_model("queue_app", "Queue").objects.using(database).get_or_create(pk="default")


class Migration(migrations.Migration):
    dependencies = [("queue_app", "0001_initial")]

    operations = [
        migrations.RunPython(create_rows, migrations.RunPython.noop),
        # Two updates a task: vacuum by what changed, not by a fifth of a table that keeps growing.
        migrations.RunSQL(
            "ALTER TABLE queue_app_task SET (autovacuum_vacuum_scale_factor = 0.01,"
            " autovacuum_vacuum_threshold = 1000, autovacuum_analyze_scale_factor = 0.02, fillfactor = 90)",
            "ALTER TABLE queue_app_task RESET (autovacuum_vacuum_scale_factor,"
            " autovacuum_vacuum_threshold, autovacuum_analyze_scale_factor, fillfactor)",
        ),
    ]
