"""Answers to requests that carried an idempotency key, so that a repetition changes nothing."""

from typing import ClassVar

from django.db import models

from queue_app.core.options import KEY_LENGTH
from queue_app.models.columns import USER_LENGTH
from queue_app.models.fields import IdField


class IdempotentRequest(models.Model):
    """One answer; its transaction made what the request asked for. It is deleted with the keys of tasks."""

    id = IdField()
    user = models.CharField(max_length=USER_LENGTH)
    key = models.CharField(max_length=KEY_LENGTH)
    digest = models.CharField(max_length=64)  # of method, address and body
    status = models.PositiveSmallIntegerField(default=0)
    answer = models.TextField(blank=True, default="")
    location = models.TextField(blank=True, default="")
    created_at = models.DateTimeField()

    class Meta:
        default_permissions: ClassVar = ()
        constraints: ClassVar = [models.UniqueConstraint(fields=["user", "key"], name="taskqueue_request_key")]
        indexes: ClassVar = [
            models.Index(fields=["created_at"], name="taskqueue_requests_old")  # services.upkeep.maintenance
        ]

    def __str__(self) -> str:
        return f"{self.user}: {self.key}"
