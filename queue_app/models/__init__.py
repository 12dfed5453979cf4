"""The tables, which are the truth; the index can be rebuilt from them."""

from queue_app.models.api_key import ApiKey as ApiKey
from queue_app.models.audit_entry import AuditEntry as AuditEntry
from queue_app.models.dead_letter import DeadLetter as DeadLetter
from queue_app.models.limit import Limit as Limit
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
from queue_app.models.task import Task as Task
from queue_app.models.task import TaskAttempt as TaskAttempt
from queue_app.models.task import TaskPayload as TaskPayload
from queue_app.models.task import TaskResult as TaskResult
from queue_app.models.token import WorkerToken as WorkerToken
from queue_app.models.worker import Worker as Worker
