"""Groups for staff, and targets for how long tasks of each band should wait."""

from django.apps import apps as installed
from django.db import migrations

from queue_app.roles import ensure_groups

#: Band -> seconds.
TARGETS = {0: 5, 1: 30, 2: 300, 3: 1800, 4: 7200}


def set_targets(apps, schema_editor):
    policies = apps.get_model("queue_app", "PriorityPolicy").objects.using(schema_editor.connection.alias)
    for priority, seconds in TARGETS.items():
        policies.filter(priority=priority, target_seconds__isnull=True).update(target_seconds=seconds)


def make_groups(apps, schema_editor):
    ensure_groups(schema_editor.connection.alias)


class Migration(migrations.Migration):
    dependencies = [
        ("queue_app", "0007_admin"),
        *(
            [("contenttypes", "0002_remove_content_type_name")]
            if installed.is_installed("django.contrib.contenttypes")
            else []
        ),
        *([("auth", "0012_alter_user_first_name_max_length")] if installed.is_installed("django.contrib.auth") else []),
    ]
    operations = [
        migrations.RunPython(set_targets, migrations.RunPython.noop),
        migrations.RunPython(make_groups, migrations.RunPython.noop),
    ]
