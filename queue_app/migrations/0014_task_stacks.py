"""What staff asked about running attempts: the stack of a task."""

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("queue_app", "0013_way")]

    operations = [
        migrations.CreateModel(
            name="TaskStack",
            fields=[
                (
                    "task",
                    models.OneToOneField(
                        db_constraint=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        primary_key=True,
                        related_name="stack",
                        serialize=False,
                        to="queue_app.task",
                    ),
                ),
                ("attempt", models.IntegerField()),
                ("worker_id", models.UUIDField()),
                ("asked_at", models.DateTimeField()),
                ("answered_at", models.DateTimeField(blank=True, null=True)),
                ("text", models.TextField(blank=True, db_default="", default="")),
            ],
            options={
                "default_permissions": (),
                "permissions": [("view_stack", "Can see the stacks of running tasks")],
            },
        ),
    ]
