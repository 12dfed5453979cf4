"""Credentials: keys of the REST API, and tokens of workers over HTTP, both stored as digests."""

from __future__ import annotations

from typing import Any, ClassVar

from django.contrib.auth import get_user_model
from django.db import models
from django.db.models import Q
from django.utils.functional import cached_property

from queue_app.models.fields import NAME_LENGTH, TYPE_LENGTH, USER_LENGTH, IdField, NamesField

# A key with which a program calls the API as a user.


class ApiKey(models.Model):
    """Whose key it is, what it allows, and until when; the secret itself is not stored.

    ``user_id`` is the user's primary key as text, not a foreign key: users may be in another
    database (decision 21).
    """

    id = IdField()
    user_id = models.CharField(max_length=TYPE_LENGTH)
    name = models.CharField(max_length=NAME_LENGTH)
    prefix = models.CharField(max_length=12, unique=True)  # first characters of the key, for people to tell keys apart
    digest = models.CharField(max_length=64)  # SHA-256 of the whole key, in hexadecimal
    scopes = NamesField(
        models.CharField(max_length=NAME_LENGTH), default=list, blank=True
    )  # empty: all of the user's; ["nothing"]: none
    created_at = models.DateTimeField()
    created_by = models.CharField(max_length=USER_LENGTH, blank=True, default="")
    expires_at = models.DateTimeField(null=True, blank=True)
    revoked_at = models.DateTimeField(null=True, blank=True)
    last_used_at = models.DateTimeField(null=True, blank=True)  # to the minute

    objects: ClassVar[models.Manager[ApiKey]] = models.Manager()

    class Meta:
        ordering: ClassVar = ["-id"]
        verbose_name = "API key"
        indexes: ClassVar = [
            models.Index(fields=["user_id"], name="taskqueue_keys_of_user")  # services.control.api_keys.delete_keys
        ]

    def __str__(self) -> str:
        return f"{self.name} ({self.prefix}…)"

    @cached_property
    def user(self) -> Any:
        """The user, from the database that holds users; ``None`` if the user was deleted."""
        return get_user_model()._base_manager.filter(pk=self.user_id).first()  # noqa: SLF001 - Django's own way


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
