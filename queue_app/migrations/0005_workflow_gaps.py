"""What a person decided about compensations, and who may stop them: workers of the former version write neither."""

from django.db import migrations, models
from django.utils.module_loading import import_string

DEFAULTS = "queue_app.migrations.0002_defaults"


class Permission(import_string(f"{DEFAULTS}.Groups")):
    """Let the group of admins stop what undoes workflows, in each database that holds the groups."""

    def database_forwards(self, app_label, schema_editor, from_state, to_state):
        database = schema_editor.connection.alias
        if not import_string(f"{DEFAULTS}._holds_groups")(database):
            return
        from django.contrib.auth.management import create_permissions  # noqa: PLC0415 - it may not be installed

        apps = to_state.apps
        config = apps.get_app_config("queue_app")
        if getattr(config, "models_module", None) is None:
            config.models_module = True  # or create_permissions takes it for an app without models
        create_permissions(config, verbosity=0, using=database, apps=apps)
        groups, permissions = apps.get_model("auth", "Group"), apps.get_model("auth", "Permission")
        own = permissions.objects.using(database).get(
            content_type__app_label="queue_app", codename="stop_undoing_workflow"
        )
        links = groups.permissions.through.objects.using(database)
        for group in groups.objects.using(database).filter(name="Task queue: Admin"):
            links.get_or_create(group_id=group.pk, permission_id=own.pk)

    def database_backwards(self, app_label, schema_editor, from_state, to_state):
        pass

    def describe(self):
        return "Permission to stop undoing"


class Migration(migrations.Migration):
    dependencies = [("queue_app", "0004_schedule_grace")]

    operations = [
        migrations.AlterModelOptions(
            name="workflow",
            options={
                "ordering": ["-id"],
                "permissions": [
                    ("steer_workflow", "Can cancel, pause, resume, retry and reprioritise workflows"),
                    ("stop_undoing_workflow", "Can stop what undoes workflows"),
                ],
            },
        ),
        migrations.AddField(
            model_name="workflow",
            name="gaps",
            field=models.JSONField(blank=True, db_default=models.Value([], models.JSONField()), default=list),
        ),
        migrations.AddField(
            model_name="workflownode",
            name="closed",
            field=models.CharField(
                blank=True,
                choices=[("skipped", "skipped"), ("done", "done"), ("stopped", "stopped")],
                db_default="",
                default="",
                max_length=8,
            ),
        ),
        migrations.AddField(
            model_name="workflownode",
            name="closed_reason",
            field=models.CharField(blank=True, db_default="", default="", max_length=200),
        ),
        Permission(),
    ]
