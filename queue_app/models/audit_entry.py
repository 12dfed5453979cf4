"""Who changed what by hand, through which door, and why: the trail of admin, API and commands."""

from __future__ import annotations

from typing import ClassVar

from django.db import models

from queue_app.models.columns import TYPE_LENGTH, USER_LENGTH
from queue_app.models.fields import IdField

REASON_LENGTH = 200  # of what somebody gives for what he does


class AuditEntry(models.Model):
    """One action of a person. Never edited; deleted with its retention."""

    id = IdField()
    at = models.DateTimeField()
    by = models.CharField(max_length=USER_LENGTH, blank=True, default="")  # of the application, or of the shell
    via = models.CharField(max_length=10, choices=[(name, name) for name in ("admin", "api", "command")])
    action = models.CharField(max_length=50)  # a verb, as in pause or task.cancel
    target = models.CharField(max_length=50)  # what kind of thing, as in queue
    target_id = models.CharField(max_length=TYPE_LENGTH, blank=True, default="")  # empty: many, see details
    count = models.PositiveIntegerField(default=1)  # how many things it changed
    before = models.JSONField(default=dict, blank=True)
    after = models.JSONField(default=dict, blank=True)
    reason = models.CharField(max_length=REASON_LENGTH, blank=True, default="")

    class Meta:
        verbose_name = "audit entry"
        verbose_name_plural = "audit log"
        ordering: ClassVar = ["-id"]
        indexes: ClassVar = [
            # who changed what: the pages of a queue, a worker, a policy
            models.Index(fields=["target", "target_id", "-id"], name="taskqueue_audit_target"),
        ]

    def __str__(self) -> str:
        return f"{self.action} {self.target} {self.target_id}".strip()
