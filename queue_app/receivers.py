"""Carry edits of limits to the index, whoever made them: admin, API, a shell."""

from __future__ import annotations

from typing import Any

from django.db.models.signals import post_delete, post_save
from django.dispatch import receiver

from queue_app.models import Limit, PriorityPolicy, Queue, RuntimeSettings
from queue_app.services.control.queues import copy_global_limits, copy_limit, copy_queue_limits, copy_thresholds


@receiver(post_save, sender=Queue, dispatch_uid="queue_app.queue_saved")
def queue_saved(instance: Queue, **_: Any) -> None:
    """Copy the limits of a saved queue."""
    copy_queue_limits(instance.name)


@receiver(post_delete, sender=Queue, dispatch_uid="queue_app.queue_deleted")
def queue_deleted(instance: Queue, **_: Any) -> None:
    """Lift the limits of a deleted queue."""
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
