"""Saved filters and searches of lists in the admin."""

from typing import ClassVar

from django.db import models

from queue_app.models.columns import USER_LENGTH
from queue_app.models.fields import IdField

MAX_QUERY = 1000


class SavedView(models.Model):
    """The query string of a list's URL; private, or shared with all staff."""

    id = IdField()
    name = models.CharField(max_length=60)
    of = models.CharField(max_length=20, choices=[("task", "tasks"), ("deadletter", "dead letters")])
    query = models.CharField(max_length=MAX_QUERY)
    user = models.CharField(max_length=USER_LENGTH)
    shared = models.BooleanField(default=False)

    class Meta:
        ordering: ClassVar = ["name"]
        constraints: ClassVar = [models.UniqueConstraint(fields=["user", "of", "name"], name="taskqueue_view_once")]

    def __str__(self) -> str:
        return self.name
