"""The audit log: what people changed in the admin, over the API and by commands, and what code did to workflows."""

from typing import ClassVar

from django.db import models

from queue_app.models.columns import TYPE_LENGTH, USER_LENGTH, choices_of
from queue_app.models.fields import IdField

REASON_LENGTH = 200


class AuditEntry(models.Model):
    """One action of a person; it is never edited, and deleted after its retention."""

    id = IdField()
    at = models.DateTimeField()
    by = models.CharField(max_length=USER_LENGTH, blank=True, default="")  # user of the application, or of the shell
    via = models.CharField(max_length=10, choices=choices_of(("admin", "api", "command", "code")))
    action = models.CharField(max_length=50)  # such as pause or task.cancel
    target = models.CharField(max_length=50)  # kind of object, such as queue
    target_id = models.CharField(max_length=TYPE_LENGTH, blank=True, default="")  # empty: several objects
    count = models.PositiveIntegerField(default=1)  # number of changed objects
    before = models.JSONField(default=dict, blank=True)
    after = models.JSONField(default=dict, blank=True)
    reason = models.CharField(max_length=REASON_LENGTH, blank=True, default="")

    class Meta:
        verbose_name = "audit entry"
        verbose_name_plural = "audit log"
        ordering: ClassVar = ["-id"]
        indexes: ClassVar = [
            # history on the pages of queues, workers and policies
            models.Index(fields=["target", "target_id", "-id"], name="taskqueue_audit_target")
        ]

    def __str__(self) -> str:
        return f"{self.action} {self.target} {self.target_id}".strip()
