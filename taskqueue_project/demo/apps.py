"""The app config of the demo."""

from django.apps import AppConfig


class DemoConfig(AppConfig):
    """The demo's tasks and models."""

    name = "taskqueue_project.demo"
    label = "demo"
    verbose_name = "Demo: word index"
