"""The Redis side: a fast, disposable index of the tasks that may run next. The only importer of redis."""

from queue_app.core.records import Lease, Proposal
from queue_app.index.client import hide_password, import_client, is_loaded, is_refusal, server_url
from queue_app.index.index import (
    MAX_CLAIM,
    Index,
    get_index,
    is_open,
    operation_of,
    redis_index,
    redis_is_away,
    rows_index,
    stream_index,
)
from queue_app.index.patience import patience
from queue_app.index.stats import IndexStats
from queue_app.index.streams import Backlog, Request, TakenRequests
from queue_app.index.workers import Generation, Profile, WorkerMessage

__all__ = [
    "MAX_CLAIM", "Backlog", "Generation", "Index", "IndexStats", "Lease", "Profile", "Proposal", "Request",
    "TakenRequests", "WorkerMessage",
    "get_index", "hide_password", "import_client", "is_loaded", "is_open", "is_refusal", "operation_of",
    "patience", "redis_index", "redis_is_away", "rows_index", "server_url", "stream_index",
]  # fmt: skip
