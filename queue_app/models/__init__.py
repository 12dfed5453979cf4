"""The tables, which are the truth; the index can be rebuilt from them."""

from queue_app.models.api_key import ApiKey as ApiKey
from queue_app.models.audit_entry import AuditEntry as AuditEntry
from queue_app.models.dead_letter import DeadLetter as DeadLetter
from queue_app.models.idempotent_request import IdempotentRequest as IdempotentRequest
from queue_app.models.limit import Limit as Limit
from queue_app.models.limit_step import LimitStep as LimitStep
from queue_app.models.maintenance_job import MaintenanceJob as MaintenanceJob
from queue_app.models.operation import Operation as Operation
from queue_app.models.policy import IndexGeneration as IndexGeneration
from queue_app.models.policy import PriorityPolicy as PriorityPolicy
from queue_app.models.policy import RuntimeSettings as RuntimeSettings
from queue_app.models.queue import Queue as Queue
from queue_app.models.queue_stats import QueueStats as QueueStats
from queue_app.models.running import StepResult as StepResult
from queue_app.models.running import TaskLog as TaskLog
from queue_app.models.running import TaskProgress as TaskProgress
from queue_app.models.saved_view import SavedView as SavedView
from queue_app.models.schedule import Schedule as Schedule
from queue_app.models.schedule import ScheduleTick as ScheduleTick
from queue_app.models.signal import Signal as Signal
from queue_app.models.task import Task as Task
from queue_app.models.task import TaskAttempt as TaskAttempt
from queue_app.models.task import TaskPayload as TaskPayload
from queue_app.models.task import TaskResult as TaskResult
from queue_app.models.task_stats import TaskStats as TaskStats
from queue_app.models.token import WorkerToken as WorkerToken
from queue_app.models.worker import Worker as Worker
from queue_app.models.workflow import DependencyCounter as DependencyCounter
from queue_app.models.workflow import TaskDependency as TaskDependency
from queue_app.models.workflow import Workflow as Workflow
from queue_app.models.workflow import WorkflowNode as WorkflowNode

#: ``from queue_app.models import *`` leaves out ``Workflow``, which is the builder in ``queue_app``.
__all__ = [name for name in dir() if name[0].isupper() and name != "Workflow"]
