"""A key with which a program calls the API in the name of a user."""

from __future__ import annotations

from typing import ClassVar

from django.conf import settings
from django.db import models

from queue_app.core.ids import uuid7
from queue_app.models.columns import NAME_LENGTH, USER_LENGTH
from queue_app.models.fields import NamesField


class ApiKey(models.Model):
    """Whose key it is, what it may do, and until when; the secret itself is not stored."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="+")
    name = models.CharField(max_length=NAME_LENGTH)
    prefix = models.CharField(max_length=12, unique=True)  # how the key begins: people tell keys apart by it
    digest = models.CharField(max_length=64)  # SHA-256 of the whole key, in hexadecimal
    scopes = NamesField(models.CharField(max_length=NAME_LENGTH), default=list, blank=True)  # empty: all of the user's
    created_at = models.DateTimeField()
    created_by = models.CharField(max_length=USER_LENGTH, blank=True, default="")
    expires_at = models.DateTimeField(null=True, blank=True)
    revoked_at = models.DateTimeField(null=True, blank=True)
    last_used_at = models.DateTimeField(null=True, blank=True)  # to the minute

    objects: ClassVar[models.Manager[ApiKey]] = models.Manager()

    class Meta:
        ordering: ClassVar = ["-id"]
        verbose_name = "API key"

    def __str__(self) -> str:
        return f"{self.name} ({self.prefix}…)"
