"""Records of tasks that the queue will not retry."""

from typing import Any, ClassVar, Self

from django.db import models
from django.db.models import Q

from queue_app.models.fields import NAME_LENGTH, PRIORITY_CHOICES, TYPE_LENGTH, USER_LENGTH, IdField
from queue_app.models.limits import indexed_if_set
from queue_app.models.operation import REASON_LENGTH
from queue_app.models.querysets import restricted_to

#: Condition of dead letters that can be replayed.
OPEN = Q(replayed_at__isnull=True, discarded_at__isnull=True)
OPEN_NAME, REPLAYED_NAME, DISCARDED_NAME = "open", "replayed", "discarded"
_STATES = {OPEN_NAME: OPEN, REPLAYED_NAME: Q(replayed_at__isnull=False), DISCARDED_NAME: Q(discarded_at__isnull=False)}
STATE_NAMES = tuple(_STATES)


def letters_restricted_to(user: Any) -> str | None:
    """Return the name of the only user whose dead letters ``user`` may see; ``None`` if ``user`` may see all."""
    return restricted_to(user, "queue_app.view_deadletter")


class DeadLetterQuerySet(models.QuerySet[Any]):
    """Dead letters."""

    def open(self) -> Self:
        """Keep dead letters that can be replayed."""
        return self.filter(OPEN)

    def in_state(self, name: str) -> Self:
        """Keep dead letters in the state open, replayed or discarded; raise ``KeyError`` for other names."""
        return self.filter(_STATES[name])

    def visible_to(self, user: Any) -> Self:
        """Keep dead letters that ``user`` may see: all for staff who may view them, else the user's own."""
        name = letters_restricted_to(user)
        return self if name is None else self.filter(user=name)


class DeadLetter(models.Model):
    """Why a task died, and whether it was replayed or discarded; the task row keeps the parameters.

    A dead letter stays until it expires, even after a replay. A task that dies again after a replay gets another dead
    letter.
    """

    id = IdField()
    task_id = models.UUIDField()
    task_type = models.CharField(max_length=TYPE_LENGTH)
    queue = models.CharField(max_length=NAME_LENGTH)
    priority = models.SmallIntegerField(choices=PRIORITY_CHOICES)
    user = models.CharField(max_length=USER_LENGTH, default="", blank=True)
    reason = models.CharField(max_length=50)
    attempts = models.IntegerField()
    exception_class = models.CharField(max_length=TYPE_LENGTH, blank=True, default="")
    message = models.TextField(blank=True, default="")
    # see core.fingerprint; empty: unknown
    fingerprint = models.CharField(max_length=16, blank=True, default="", db_default="")
    died_at = models.DateTimeField()
    expires_at = models.DateTimeField()
    replayed_at = models.DateTimeField(null=True, blank=True)
    replayed_by = models.CharField(max_length=USER_LENGTH, blank=True, default="")
    # The statement that inserts a dead letter does not name the following columns, so they have database defaults.
    parameters_edited = models.BooleanField(default=False, db_default=False)
    operation_id = models.UUIDField(null=True, blank=True)  # operation that replayed it; it may be purged
    discarded_at = models.DateTimeField(null=True, blank=True)
    discarded_by = models.CharField(max_length=USER_LENGTH, blank=True, default="", db_default="")
    discard_reason = models.CharField(max_length=REASON_LENGTH, blank=True, default="", db_default="")

    objects: ClassVar[DeadLetterQuerySet] = DeadLetterQuerySet.as_manager()  # type: ignore[assignment]

    class Meta:
        ordering: ClassVar = ["-id"]
        indexes: ClassVar = [
            models.Index(fields=["expires_at"], name="taskqueue_dlq_expiry"),  # services.upkeep.maintenance
            # the API's list, and bulk replays, oldest first
            models.Index(fields=["died_at", "id"], name="taskqueue_dlq_by_death"),
            # the API's list of one user's dead letters
            models.Index(fields=["user", "died_at", "id"], condition=~Q(user=""), name="taskqueue_dlq_by_user"),
            # groups of open dead letters by cause
            models.Index(fields=["fingerprint", "died_at"], condition=OPEN, name="taskqueue_dlq_by_cause"),
            # the first dead letters that an operation replayed, whose tasks it waits for
            indexed_if_set("operation_id", "died_at", name="taskqueue_dlq_operation"),
        ]
        constraints: ClassVar = [
            # one dead letter per task until a replay; also serves the lookup by task
            models.UniqueConstraint(
                fields=["task_id"], condition=Q(replayed_at__isnull=True), name="taskqueue_dlq_once"
            ),
            models.CheckConstraint(
                condition=Q(replayed_at__isnull=True) | Q(discarded_at__isnull=True), name="taskqueue_dlq_one_end"
            ),
        ]
        permissions: ClassVar = [
            ("replay_deadletter", "Can replay dead letters"),
            ("discard_deadletter", "Can discard dead letters"),
        ]

    def __str__(self) -> str:
        return f"{self.task_type} {self.task_id}"

    @property
    def state(self) -> str:
        """The state: open, replayed or discarded."""
        if self.replayed_at is not None:
            return REPLAYED_NAME
        return OPEN_NAME if self.discarded_at is None else DISCARDED_NAME
