"""The Django admin of the queue; works with the plain ``django.contrib.admin`` site."""

from queue_app.admin import audit_entry, dead_letter, maintenance, operation, policy, queue, schedule, task, worker  # noqa: F401
from queue_app.admin.panel import TaskPanelMixin

__all__ = ["TaskPanelMixin"]
