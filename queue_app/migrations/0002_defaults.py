"""Rows that exist once, the default queue, the policies of the bands, and groups for staff."""

from django.apps import apps as installed
from django.db import DatabaseError, connections, migrations, router, transaction
from django.db.migrations.operations.base import Operation

# band: (max_retries, timeout_seconds, promote_after_seconds, target_seconds)
POLICIES = {
    0: (5, 300, None, 5),
    1: (5, 300, None, 30),
    2: (3, 600, 1200, 300),
    3: (2, 900, 600, 1800),
    4: (2, 900, 600, 7200),
}

VIEWER = (
    "view_task", "view_queue", "view_limit", "view_worker", "view_deadletter", "view_queuestats", "view_operation",
    "view_prioritypolicy", "view_runtimesettings", "view_indexgeneration", "view_maintenancejob",
    "view_auditentry", "view_savedview", "view_schedule", "view_scheduletick", "view_taskstats",
    "view_workflow",
)
OPERATOR = (
    *VIEWER, "view_payload", "cancel_task", "reprioritise_task", "retry_task", "pause_queue", "pause_limit",
    "pause_schedule", "run_schedule",
    "drain_worker",
    "replay_deadletter", "discard_deadletter", "send_signal", "add_savedview", "delete_savedview",
    "steer_workflow",
)
ADMIN = (
    *OPERATOR, "add_queue", "change_queue", "delete_queue", "add_limit", "change_limit", "delete_limit",
    "change_prioritypolicy", "change_runtimesettings", "change_savedview",
    "add_schedule", "change_schedule", "delete_schedule", "delete_task",
    "stop_undoing_workflow",  # a permission of 0005, which gives it to the group
    "view_apikey", "add_apikey", "change_apikey", "view_workertoken", "add_workertoken", "change_workertoken",
)
GROUPS = {"Task queue: Viewer": VIEWER, "Task queue: Operator": OPERATOR, "Task queue: Admin": ADMIN}


def create_rows(apps, schema_editor):
    database = schema_editor.connection.alias
    policies = apps.get_model("queue_app", "PriorityPolicy").objects.using(database)
    for band, (max_retries, timeout, promote_after, target) in POLICIES.items():
        policies.get_or_create(
            priority=band,
            defaults={
                "max_retries": max_retries,
                "timeout_seconds": timeout,
                "promote_after_seconds": promote_after,
                "target_seconds": target,
            },
        )
    apps.get_model("queue_app", "RuntimeSettings").objects.using(database).get_or_create(pk=1)
    apps.get_model("queue_app", "IndexGeneration").objects.using(database).get_or_create(pk=1)
    apps.get_model("queue_app", "Queue").objects.using(database).get_or_create(pk="default")


def create_groups(apps, database):
    """Create the missing groups with their permissions; return their names."""
    from django.contrib.auth.management import create_permissions

    group_model, permission_model = apps.get_model("auth", "Group"), apps.get_model("auth", "Permission")
    config = apps.get_app_config("queue_app")
    if getattr(config, "models_module", None) is None:
        config.models_module = True  # or create_permissions takes it for an app without models
    create_permissions(config, verbosity=0, using=database, apps=apps)
    # The rows of the link, because group.permissions writes to the database that the router names.
    links = group_model.permissions.through
    created = []
    for name, codenames in GROUPS.items():
        group, is_new = group_model.objects.using(database).get_or_create(name=name)
        if is_new:
            permissions = permission_model.objects.using(database).filter(
                content_type__app_label="queue_app", codename__in=codenames
            )
            links.objects.using(database).bulk_create(
                [links(group_id=group.pk, permission_id=permission.pk) for permission in permissions]
            )
            created.append(name)
    return created


def delete_groups(database):
    """Delete the groups that have no members, and this app's permissions and content types that nothing refers to.

    A group with members keeps its permissions, so that its members have them again after the next migration.
    The models are those that are installed now: they know every table that may refer to a row. If the database
    still finds a reference, all rows stay.
    """
    from django.contrib.auth.models import Group, Permission
    from django.contrib.contenttypes.models import ContentType

    connection = connections[database]
    tables = set(connection.introspection.table_names())

    def unused(model, **filters):
        relations = [each for each in model._meta.related_objects if each.related_model._meta.db_table in tables]
        rows = model.objects.using(database).filter(**filters, **{each.name: None for each in relations})
        return list(rows.values_list("pk", flat=True))

    def delete(model, **filters):
        model.objects.using(database).filter(**filters)._raw_delete(database)  # without looking at missing tables

    try:
        with transaction.atomic(using=database):
            groups = unused(Group, name__in=GROUPS)
            delete(Group.permissions.through, group__in=groups)
            delete(Group, pk__in=groups)
            delete(Permission, pk__in=unused(Permission, content_type__app_label="queue_app"))
            delete(ContentType, pk__in=unused(ContentType, app_label="queue_app"))
            connection.check_constraints()
    except DatabaseError:
        pass
    ContentType.objects.clear_cache()


class Groups(Operation):
    """Create the groups in each database that holds the tables of ``auth``, with or without the tables of the queue.

    ``RunPython`` would ask the router whether this app belongs in the database.
    """

    reversible = True
    reduces_to_sql = False

    def state_forwards(self, app_label, state):
        pass

    def database_forwards(self, app_label, schema_editor, from_state, to_state):
        if _holds_groups(schema_editor.connection.alias):
            create_groups(from_state.apps, schema_editor.connection.alias)

    def database_backwards(self, app_label, schema_editor, from_state, to_state):
        if _holds_groups(schema_editor.connection.alias):
            delete_groups(schema_editor.connection.alias)

    def describe(self):
        return "Groups for staff"


def _holds_groups(database):
    return installed.is_installed("django.contrib.auth") and all(
        router.allow_migrate(database, app, model_name=model)
        for app, model in (("auth", "group"), ("auth", "permission"), ("contenttypes", "contenttype"))
    )


class Migration(migrations.Migration):
    dependencies = [
        ("queue_app", "0001_initial"),
        *(
            [("contenttypes", "0002_remove_content_type_name"), ("auth", "0012_alter_user_first_name_max_length")]
            if installed.is_installed("django.contrib.auth")
            else []
        ),
    ]
    operations = [
        migrations.RunPython(create_rows, migrations.RunPython.noop, hints={"model_name": "queue"}),
        Groups(),
    ]
