"""Tokens of workers that work over HTTP, without access to the servers."""

from typing import ClassVar

from django.db import models
from django.db.models import Q

from queue_app.models.columns import NAME_LENGTH, USER_LENGTH
from queue_app.models.fields import IdField, NamesField


class WorkerToken(models.Model):
    """A token with its queues and capabilities; the secret itself is not stored."""

    id = IdField()
    name = models.CharField(max_length=NAME_LENGTH, unique=True)
    digest = models.CharField(max_length=64, unique=True)  # SHA-256 of the secret, in hexadecimal
    hint = models.CharField(max_length=12)  # first characters of the secret, for people to tell tokens apart
    old_digest = models.CharField(max_length=64, null=True, blank=True, unique=True)
    old_until = models.DateTimeField(null=True, blank=True)  # end of validity of the secret before the last rotation
    queues = NamesField(models.CharField(max_length=NAME_LENGTH), default=list, blank=True)  # empty: all
    capabilities = NamesField(models.CharField(max_length=NAME_LENGTH), default=list, blank=True)  # empty: none
    max_in_flight = models.PositiveIntegerField(default=100)  # maximum number of tasks that its workers hold together
    #: Whether its workers get encrypted tasks, which the server decrypts for them.
    reads_encrypted = models.BooleanField(default=False, db_default=False)
    created_at = models.DateTimeField()
    created_by = models.CharField(max_length=USER_LENGTH, blank=True, default="")
    expires_at = models.DateTimeField(null=True, blank=True)
    last_used_at = models.DateTimeField(null=True, blank=True)  # to the minute
    revoked_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering: ClassVar = ["name"]
        constraints: ClassVar = [
            models.CheckConstraint(condition=Q(max_in_flight__gte=1), name="taskqueue_token_in_flight"),
            models.CheckConstraint(
                condition=Q(old_digest__isnull=True) | Q(old_until__isnull=False), name="taskqueue_token_old"
            ),
        ]

    def __str__(self) -> str:
        return self.name
