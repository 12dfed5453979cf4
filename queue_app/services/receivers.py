"""Copy changed limits to the index, whether admin, API or a shell changed them; delete the keys of deleted users."""

from functools import partial
from typing import Any

from django.conf import settings
from django.db import transaction
from django.db.models.signals import post_delete, post_save
from django.dispatch import receiver

from queue_app.models import Limit, PriorityPolicy, Queue, RuntimeSettings
from queue_app.services.control.api_keys import delete_keys
from queue_app.services.control.queues import copy_global_limits, copy_limit, copy_queue_limits, copy_thresholds


@receiver(post_save, sender=Queue, dispatch_uid="queue_app.queue_saved")
@receiver(post_delete, sender=Queue, dispatch_uid="queue_app.queue_deleted")
def queue_changed(instance: Queue, **_: Any) -> None:
    """Copy the limits of a saved queue, or lift the limits of a deleted one."""
    copy_queue_limits(instance.name)


@receiver(post_save, sender=RuntimeSettings, dispatch_uid="queue_app.settings_saved")
def settings_saved(**_: Any) -> None:
    """Copy the limits over all queues."""
    copy_global_limits()


@receiver(post_save, sender=Limit, dispatch_uid="queue_app.limit_saved")
@receiver(post_delete, sender=Limit, dispatch_uid="queue_app.limit_deleted")
def limit_changed(instance: Limit, **_: Any) -> None:
    """Copy the limits of a task type or key."""
    copy_limit(instance)


@receiver(post_save, sender=PriorityPolicy, dispatch_uid="queue_app.policy_saved")
@receiver(post_delete, sender=PriorityPolicy, dispatch_uid="queue_app.policy_deleted")
def policy_changed(**_: Any) -> None:
    """Copy the thresholds of promotion."""
    copy_thresholds()


@receiver(post_delete, sender=settings.AUTH_USER_MODEL, dispatch_uid="queue_app.user_deleted")
def user_deleted(instance: Any, using: str, **_: Any) -> None:
    """Delete the keys of a deleted user once the deletion is committed, perhaps in another database."""
    transaction.on_commit(partial(delete_keys, str(instance.pk)), using=using, robust=True)
