"""The results of the demo's tasks."""

from typing import ClassVar

from django.db import models
from django.db.models import Q


class DemoRun(models.Model):
    """One run of the demo."""

    folder = models.TextField()
    started_at = models.DateTimeField(auto_now_add=True)
    skipped = models.JSONField(default=dict)  # {reason: number of files}

    class Meta:
        ordering: ClassVar = ["-id"]

    def __str__(self) -> str:
        return f"run {self.pk} over {self.folder}"


class DocumentIndex(models.Model):
    """One text file; one task counts its words, another computes its digest."""

    run = models.ForeignKey(DemoRun, on_delete=models.CASCADE, related_name="documents")
    path = models.TextField()  # relative to the folder of the run
    size = models.BigIntegerField()  # bytes, when the folder was read
    words = models.BigIntegerField(null=True, blank=True)
    lines = models.BigIntegerField(null=True, blank=True)
    digest = models.CharField(max_length=64, blank=True, default="")  # SHA-256 of the bytes

    class Meta:
        ordering: ClassVar = ["path"]
        verbose_name_plural = "document index"
        indexes: ClassVar = [
            # For tasks._roll_up_when_complete.
            models.Index(
                fields=["run"], condition=Q(words__isnull=True) | Q(digest=""), name="demo_document_incomplete"
            ),
        ]
        constraints: ClassVar = [models.UniqueConstraint(fields=["run", "path"], name="demo_document_once")]

    def __str__(self) -> str:
        return self.path


class RollUp(models.Model):
    """The totals of all files of a run."""

    run = models.OneToOneField(DemoRun, on_delete=models.CASCADE, related_name="roll_up")
    documents = models.BigIntegerField()
    words = models.BigIntegerField()
    lines = models.BigIntegerField()
    size = models.BigIntegerField()  # bytes
    digest = models.CharField(max_length=64)  # SHA-256 of the files' digests, ordered by path
    created_at = models.DateTimeField(auto_now=True)

    class Meta:
        ordering: ClassVar = ["-run"]

    def __str__(self) -> str:
        return f"{self.words} words in {self.documents} documents"
