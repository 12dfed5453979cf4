"""The tables, which are the truth; the index can be rebuilt from them."""

from queue_app.models.api_key import ApiKey
from queue_app.models.audit_entry import AuditEntry
from queue_app.models.dead_letter import DeadLetter
from queue_app.models.limit import Limit
from queue_app.models.maintenance_job import MaintenanceJob
from queue_app.models.operation import Operation
from queue_app.models.policy import IndexGeneration, PriorityPolicy, RuntimeSettings
from queue_app.models.queue import Queue
from queue_app.models.queue_stats import QueueStats
from queue_app.models.running import TaskLog, TaskProgress
from queue_app.models.saved_view import SavedView
from queue_app.models.task import Task, TaskAttempt, TaskPayload, TaskResult
from queue_app.models.token import WorkerToken
from queue_app.models.worker import Worker

__all__ = [
    "ApiKey",
    "AuditEntry",
    "DeadLetter",
    "IndexGeneration",
    "Limit",
    "MaintenanceJob",
    "Operation",
    "PriorityPolicy",
    "Queue",
    "QueueStats",
    "RuntimeSettings",
    "SavedView",
    "Task",
    "TaskAttempt",
    "TaskLog",
    "TaskPayload",
    "TaskProgress",
    "TaskResult",
    "Worker",
    "WorkerToken",
]
