"""Groups for staff, made by a migration: Viewer, Operator, Admin. Change them as you like; nothing resets them."""

from __future__ import annotations

from typing import Any, Final

from django.apps import apps

VIEWER: Final = (
    "view_task", "view_queue", "view_limit", "view_worker", "view_deadletter", "view_queuestats", "view_operation",
    "view_prioritypolicy", "view_runtimesettings", "view_indexgeneration", "view_maintenancejob",
    "view_auditentry", "view_savedview",
)  # fmt: skip
OPERATOR: Final = (
    *VIEWER, "view_payload", "cancel_task", "reprioritise_task", "retry_task", "pause_queue", "pause_limit",
    "drain_worker",
    "replay_deadletter", "discard_deadletter", "add_savedview", "delete_savedview",
)  # fmt: skip
ADMIN: Final = (
    *OPERATOR, "add_queue", "change_queue", "delete_queue", "add_limit", "change_limit", "delete_limit",
    "change_prioritypolicy", "change_runtimesettings", "change_savedview",
)  # fmt: skip
GROUPS: Final = {"Task queue: Viewer": VIEWER, "Task queue: Operator": OPERATOR, "Task queue: Admin": ADMIN}


def ensure_groups(using: str) -> list[str]:
    """Create those of the groups that do not exist, with their permissions; return their names.

    Without ``django.contrib.auth`` there are none. Permissions of models that are not there
    (yet) are left out.
    """
    if not apps.is_installed("django.contrib.auth"):
        return []
    from django.contrib.auth.management import create_permissions  # noqa: PLC0415 - only where auth is installed
    from django.contrib.auth.models import Group, Permission  # noqa: PLC0415

    config: Any = apps.get_app_config("queue_app")
    create_permissions(config, verbosity=0, using=using)
    made: list[str] = []
    for name, codenames in GROUPS.items():
        group, created = Group.objects.using(using).get_or_create(name=name)
        if created:
            found = Permission.objects.using(using).filter(
                content_type__app_label="queue_app", codename__in=sorted(set(codenames))
            )
            group.permissions.set(found)
            made.append(name)
    return made
