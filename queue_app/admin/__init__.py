"""The Django admin of the queue; works with the plain ``django.contrib.admin`` site."""

from queue_app.admin import (
    audit_entry,
    dead_letter,
    limit,
    maintenance,
    operation,
    policy,
    queue,
    task,
    worker,
)
from queue_app.admin.panel import TaskPanelMixin

__all__ = [
    "TaskPanelMixin",
    "audit_entry",
    "dead_letter",
    "limit",
    "maintenance",
    "operation",
    "policy",
    "queue",
    "task",
    "worker",
]
