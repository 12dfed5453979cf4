"""A task: a narrow hot row, with wide and constant data in tables of their own.

Every change of status updates every index of the row's table. So ``Task`` has only the columns
that the protocol needs, and few indexes. Parameters (written by the enqueue), results (written
at the end) and attempts (written by failures) have tables of their own. Their foreign keys have
no constraint: they are written and deleted in the same statement as the task, and a constraint
would cost each enqueue a lookup and a lock.
"""

from datetime import UTC, datetime
from typing import ClassVar

from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models
from django.db.models import F, Func, Q, Value
from django.utils.translation import gettext_lazy as _lazy

from queue_app.core import trace
from queue_app.core.options import CONCURRENCY_KEY_LENGTH, KEY_LENGTH, MAX_WEIGHT, USER_LENGTH
from queue_app.core.priorities import Band
from queue_app.core.states import TERMINAL, Status
from queue_app.core.unique import LENGTH as UNIQUE_LENGTH
from queue_app.models.fields import (
    NAME_LENGTH,
    PRIORITY_CHOICES,
    STATUS_CHOICES,
    TYPE_LENGTH,
    BlockIndex,
    ContainmentIndex,
    IdField,
    NamesField,
    WordsIndex,
)
from queue_app.models.limits import indexed_if_set, optional_seconds
from queue_app.models.querysets import TaskQuerySet

# The columns of a task's options, in tasks and in schedules.


class OptionColumns(models.Model):
    """The options of ``core.options.RowOptions``."""

    capabilities = NamesField(models.CharField(max_length=NAME_LENGTH), default=list, blank=True)
    user = models.CharField(max_length=USER_LENGTH, default="", blank=True)
    timeout = optional_seconds(_lazy("Seconds until an attempt is overdue. Empty: by the queue or the band."))
    max_retries = models.SmallIntegerField(
        null=True, blank=True, validators=[MinValueValidator(0)], help_text=_lazy("Empty: by the queue or the band.")
    )
    retry_delay = optional_seconds(_lazy("Seconds before the first retry. Empty: the project's setting."))
    concurrency_key = models.CharField(max_length=CONCURRENCY_KEY_LENGTH, default="", db_default="", blank=True)
    weight = models.SmallIntegerField(
        default=1,
        db_default=1,
        validators=[MinValueValidator(1), MaxValueValidator(MAX_WEIGHT)],
        help_text=_lazy("Slots that it takes."),
    )

    class Meta:
        abstract = True


#: Terminal states without a result; sorted, because migrations compare the list.
UNSUCCESSFUL = sorted(TERMINAL - {Status.COMPLETED})
_PENDING = [Status.BLOCKED, Status.SCHEDULED, Status.QUEUED, Status.EXECUTING]  # migrations compare the list
#: Terminal states. PostgreSQL would build an array from a list in every statement, even if no task has ended.
_TERMINAL_PATTERN = f"^({'|'.join(sorted(TERMINAL))})$"
#: Bounds of the times by which tasks are ordered. The index places a task at band * 10^13 + ms since 1970, so from
#: November 2286 on it would stand in another band.
_EARLIEST, _LATEST = datetime(1970, 1, 1, tzinfo=UTC), datetime(2286, 1, 1, tzinfo=UTC)
#: Expected number of different values in 8 pages; the bloom filter then takes 120 bytes.
_FEW = "n_distinct_per_range=100"


class Task(OptionColumns):
    """One unit of work and its state."""

    id = IdField()
    task_type = models.CharField(max_length=TYPE_LENGTH)
    queue = models.CharField(max_length=NAME_LENGTH)
    status = models.CharField(max_length=12, choices=STATUS_CHOICES)
    priority = models.SmallIntegerField(choices=PRIORITY_CHOICES)
    attempt = models.IntegerField(default=0)  # fencing token: rises with every claim, never falls
    failures = models.SmallIntegerField(default=0)  # attempts that count against max_retries
    crashes = models.SmallIntegerField(default=0, db_default=0)  # attempts whose worker died since the last step
    created_at = models.DateTimeField()
    run_after = models.DateTimeField(null=True, blank=True)
    queued_at = models.DateTimeField(null=True, blank=True)  # position in its lane
    started_at = models.DateTimeField(null=True, blank=True)
    deadline = models.DateTimeField(null=True, blank=True)
    finished_at = models.DateTimeField(null=True, blank=True)
    worker_id = models.UUIDField(null=True, blank=True)  # the worker that runs it, or ran it last
    leased_at = models.BigIntegerField(null=True, blank=True)  # stamp of its last lease in the index (µs)
    cancel_requested_at = models.DateTimeField(null=True, blank=True)
    unique_key = models.CharField(max_length=UNIQUE_LENGTH, null=True, blank=True)  # noqa: DJ001 - null: not unique, so the partial index skips it
    idempotency_key = models.CharField(max_length=KEY_LENGTH, null=True, blank=True)  # noqa: DJ001 - null: no key, so the unique index skips it
    workflow_id = models.UUIDField(null=True, blank=True)  # null: in no workflow

    objects: ClassVar[TaskQuerySet] = TaskQuerySet.as_manager()  # type: ignore[assignment]

    class Meta:
        indexes: ClassVar = [
            # services.upkeep.promote: scheduled tasks whose time has come
            models.Index(fields=["run_after"], condition=Q(status=Status.SCHEDULED), name="taskqueue_due"),
            # services.upkeep.promote: tasks that waited for a signal in vain
            models.Index(
                fields=["run_after"],
                condition=Q(status=Status.BLOCKED, attempt__gt=0, queued_at__isnull=True),
                name="taskqueue_signal_timeouts",
            ),
            # services.repair.reconcile: queued rows by age, in pages
            models.Index(fields=["queued_at", "id"], condition=Q(status=Status.QUEUED), name="taskqueue_waiting"),
            # lists of blocked tasks, and the sweep that looks for forgotten ones
            models.Index(fields=["id"], condition=Q(status=Status.BLOCKED), name="taskqueue_blocked"),
            # workflows: the tasks of a workflow by state. A blocked one with queued_at waits for nothing but a
            # pause of the workflow, or its cap
            indexed_if_set("workflow_id", "status", "queued_at", name="taskqueue_of_workflow"),
            # services.repair.reap, rebuild (leases) and the worker page: running tasks of a worker
            models.Index(fields=["worker_id"], condition=Q(status=Status.EXECUTING), name="taskqueue_executing"),
            # services.upkeep.maintenance (successes) and statistics: tasks by their end
            indexed_if_set("finished_at", name="taskqueue_finished"),
            # services.upkeep.maintenance: unsuccessful tasks by their end; completed tasks never enter it
            models.Index(
                fields=["finished_at"], condition=Q(status__in=UNSUCCESSFUL), name="taskqueue_unsuccessful_ends"
            ),
            # lists of unsuccessful tasks, newest first
            models.Index(fields=["status", "id"], condition=Q(status__in=UNSUCCESSFUL), name="taskqueue_unsuccessful"),
            # the API's lists and counts by type: a task enters once, when it ends, so only the finish pays
            models.Index(fields=["task_type", "id"], condition=Q(finished_at__isnull=False), name="taskqueue_by_type"),
            # lists of one concurrency key: as above, and only tasks that have one
            models.Index(
                fields=["concurrency_key", "id"],
                condition=Q(finished_at__isnull=False) & ~Q(concurrency_key=""),
                name="taskqueue_by_key",
            ),
            # lists and counts of ended tasks by a rare or missing value: PostgreSQL skips pages. An entry covers 8
            # pages, so a finish costs far less than with three B-tree indexes. It has no times: each finish in a used
            # page would raise the latest one, and write the entry to the WAL
            BlockIndex(
                fields=["queue", "worker_id", "priority"],
                opclasses=[
                    f"text_bloom_ops({_FEW})",
                    f"uuid_bloom_ops({_FEW})",
                    "int2_minmax_ops",
                ],
                pages_per_range=8,
                condition=Q(finished_at__isnull=False),
                name="taskqueue_ended_pages",
            ),
            # the same by capabilities; contains only tasks that require some
            ContainmentIndex(
                fields=["capabilities"],
                condition=Q(finished_at__isnull=False) & ~Q(capabilities=[]),
                name="taskqueue_by_capability",
            ),
            # the API's list of one user's own tasks, newest first
            models.Index(fields=["user", "id"], condition=~Q(user=""), name="taskqueue_by_user"),
            # services.enqueue.admission: a queue's length, its oldest tasks; services.repair.rebuild: its tasks by band
            models.Index(
                fields=["queue", "priority", "queued_at", "id"],
                condition=Q(status__in=[Status.SCHEDULED, Status.QUEUED]),
                name="taskqueue_length",
            ),
            models.Index(
                fields=["user", "queue"],
                condition=Q(status__in=_PENDING) & ~Q(user=""),
                name="taskqueue_user_pending",
            ),
            # services.enqueue.unique: the task that stands for a key; pending tasks have no end and come first
            indexed_if_set("unique_key", "finished_at", name="taskqueue_unique"),
        ]
        constraints: ClassVar = [
            # services.enqueue: one task per key and user
            models.UniqueConstraint(
                fields=["user", "idempotency_key"],
                condition=Q(idempotency_key__isnull=False),
                name="taskqueue_idempotency",
            ),
            # Two checks instead of one per rule: PostgreSQL prepares every check again in every statement that writes
            # a row (decision 20).
            models.CheckConstraint(
                condition=(
                    Q(finished_at__isnull=True)
                    & (
                        Q(status=Status.QUEUED, queued_at__isnull=False)
                        | Q(status=Status.BLOCKED)
                        | Q(status=Status.SCHEDULED, run_after__isnull=False)
                        | Q(
                            status=Status.EXECUTING,
                            queued_at__isnull=False,
                            started_at__isnull=False,
                            deadline__isnull=False,
                            worker_id__isnull=False,
                            attempt__gte=1,
                        )
                    )
                )
                | Q(finished_at__isnull=False, status__regex=_TERMINAL_PATTERN),
                name="taskqueue_lifecycle",
            ),
            models.CheckConstraint(
                condition=Q(priority__gte=min(Band), priority__lte=max(Band))
                & Q(failures__gte=0, failures__lte=F("attempt"), crashes__gte=0, crashes__lte=F("attempt"))
                & Q(weight__gte=1, weight__lte=MAX_WEIGHT)
                & Q(max_retries__gte=0, timeout__gt=0)  # null violates neither
                & Q(queued_at__gte=_EARLIEST, queued_at__lt=_LATEST, run_after__gte=_EARLIEST, run_after__lt=_LATEST),
                name="taskqueue_numbers",
            ),
        ]
        permissions: ClassVar = [
            ("cancel_task", "Can cancel tasks"),
            ("reprioritise_task", "Can change the priority of waiting tasks"),
            ("retry_task", "Can run tasks now, again, or again with other parameters"),
            ("view_payload", "Can view parameters, results and errors of tasks"),
            ("view_encrypted", "Can decrypt the data of tasks, and encrypt them again"),
        ]

    def __str__(self) -> str:
        return f"{self.task_type} {str(self.id)[-8:]}"

    @property
    def band(self) -> Band:
        return Band(self.priority)

    @property
    def effective_band(self) -> Band:
        """The band after promotion, if ``with_effective_priority`` loaded it; else the task's own band."""
        return Band(getattr(self, "effective_priority", self.priority))

    @property
    def trace_id(self) -> str:
        """The id of its trace, if ``services.read.inspect`` loaded what the caller sent; else the task's own."""
        return trace.trace_id(trace.of_task(self.id, getattr(self, "sent_trace", None)))


class TaskPayload(models.Model):
    """Arguments of a task; written once, with the task."""

    task = models.OneToOneField(
        Task, on_delete=models.CASCADE, primary_key=True, db_constraint=False, related_name="payload"
    )
    args = models.JSONField(default=list)
    parameters = models.JSONField(default=dict)
    metadata = models.JSONField(null=True, blank=True)  # what hooks added at the enqueue
    trace = models.CharField(max_length=55, null=True, blank=True)  # noqa: DJ001 - W3C traceparent; null: no trace

    class Meta:
        indexes: ClassVar = [
            # the API's filter by parameters; transitions do not touch this table
            ContainmentIndex(fields=["parameters"], opclasses=["jsonb_path_ops"], name="taskqueue_parameters")
        ]

    def __str__(self) -> str:
        return f"parameters of {self.task_id}"


class TaskResult(models.Model):
    """Result of a task; written once, at its completion, unless it is null."""

    task = models.OneToOneField(
        Task, on_delete=models.CASCADE, primary_key=True, db_constraint=False, related_name="outcome"
    )
    value = models.JSONField()

    def __str__(self) -> str:
        return f"result of {self.task_id}"


#: Number of characters of a message whose words are indexed.
INDEXED_CHARACTERS = 2000


def words_of_error() -> Func:
    """Return the words of an attempt's error, as the index has them; ``sql.search`` asks for the same expression."""
    text = Func(
        F("exception_class"), Value(" "), Func(F("message"), Value(INDEXED_CHARACTERS), function="left"),
        arg_joiner=" || ", template="(%(expressions)s)",
    )  # fmt: skip
    plain = Func(text, Value("[^[:alnum:]]+"), Value(" "), Value("g"), function="regexp_replace")
    return Func(Value("simple"), plain, function="to_tsvector")


class TaskAttempt(models.Model):
    """An attempt that did not complete, with its error."""

    task = models.ForeignKey(
        Task, on_delete=models.CASCADE, db_constraint=False, related_name="attempts", db_index=False
    )
    attempt = models.IntegerField()
    worker_id = models.UUIDField(null=True, blank=True)
    started_at = models.DateTimeField()
    finished_at = models.DateTimeField()
    exception_class = models.CharField(max_length=TYPE_LENGTH)
    message = models.TextField(blank=True)
    traceback = models.TextField(blank=True)

    class Meta:
        indexes: ClassVar = [
            # the search for errors by the beginnings of their words; only failures write here
            WordsIndex(words_of_error(), name="taskqueue_error_words")
        ]
        constraints: ClassVar = [
            # one record per attempt, even if it is reported twice; also serves the list of a task's attempts
            models.UniqueConstraint(fields=["task", "attempt"], name="taskqueue_attempt_once")
        ]

    def __str__(self) -> str:
        return f"attempt {self.attempt} of {self.task_id}: {self.exception_class}"


# A message to one task, or to any one task of a workflow; a step of the task waits for it.


class Signal(models.Model):
    """One signal; one step takes it, the oldest first. Ids rise in the order in which a task's signals arrived."""

    task = models.ForeignKey(
        Task, on_delete=models.CASCADE, null=True, db_constraint=False, related_name="signals", db_index=False
    )
    workflow_id = models.UUIDField(null=True, blank=True)  # instead of the task
    name = models.CharField(max_length=NAME_LENGTH)
    payload = models.JSONField(null=True, blank=True)
    sent_at = models.DateTimeField()
    sent_by = models.CharField(max_length=USER_LENGTH, blank=True, default="")
    taken_at = models.DateTimeField(null=True, blank=True)  # null: no step has taken it

    class Meta:
        permissions: ClassVar = [("send_signal", "Can send signals to tasks, such as approvals")]
        indexes: ClassVar = [
            models.Index(fields=["task", "id"], name="taskqueue_signals"),  # the signals of a task
            # services.lifecycle.steps: signals that a step may take
            models.Index(fields=["task", "name", "id"], condition=Q(taken_at__isnull=True), name="taskqueue_untaken"),
            indexed_if_set("workflow_id", "id", name="taskqueue_flow_signals"),
        ]

    def __str__(self) -> str:
        return f"signal {self.name} to {self.workflow_id or self.task_id}"
