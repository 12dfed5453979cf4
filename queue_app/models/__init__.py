"""The tables, which are the truth; the index can be rebuilt from them."""

from queue_app.models.credentials import ApiKey, WorkerToken
from queue_app.models.dead_letter import DeadLetter
from queue_app.models.limits import IndexGeneration, Limit, LimitStep, PriorityPolicy, RuntimeSettings
from queue_app.models.operation import AuditEntry, IdempotentRequest, Operation, SavedView
from queue_app.models.queue import Queue
from queue_app.models.schedule import Schedule, ScheduleTick
from queue_app.models.stats import MaintenanceJob, QueueStats, TaskStats
from queue_app.models.task import Signal, Task, TaskAttempt, TaskPayload, TaskResult
from queue_app.models.worker import StepResult, TaskLog, TaskProgress, TaskStack, Worker
from queue_app.models.workflow import DependencyCounter, TaskDependency, Workflow as Workflow, WorkflowNode

#: ``from queue_app.models import *`` leaves out ``Workflow``, which is the builder in ``queue_app``.
__all__ = [
    "ApiKey", "AuditEntry", "DeadLetter", "DependencyCounter", "IdempotentRequest", "IndexGeneration", "Limit",
    "LimitStep", "MaintenanceJob", "Operation", "PriorityPolicy", "Queue", "QueueStats", "RuntimeSettings",
    "SavedView", "Schedule", "ScheduleTick", "Signal", "StepResult", "Task", "TaskAttempt", "TaskDependency",
    "TaskLog", "TaskPayload", "TaskProgress", "TaskResult", "TaskStack", "TaskStats", "Worker",
    "WorkerToken", "WorkflowNode",
]  # fmt: skip
