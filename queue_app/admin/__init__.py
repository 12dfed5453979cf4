"""The Django admin of the queue; works with the plain ``django.contrib.admin`` site."""

from django.contrib import admin

from queue_app.admin import (  # noqa: F401
    audit_entry,
    credentials,
    dead_letter,
    maintenance,
    operation,
    policy,
    queue,
    schedule,
    task,
    task_stats,
    worker,
    workflow,
)
from queue_app.admin.menu import group_menu
from queue_app.admin.names import translate_names
from queue_app.admin.panel import TaskPanelMixin

__all__ = ["TaskPanelMixin"]

translate_names()
group_menu(admin.site)
