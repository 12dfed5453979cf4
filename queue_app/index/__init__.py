"""The Redis side: a fast, disposable index of what may run next. The only importer of redis."""

from __future__ import annotations

from functools import cache

from queue_app import conf
from queue_app.core.records import Lease, Proposal
from queue_app.index.client import hide_password, server_url
from queue_app.index.index import MAX_CLAIM, Generation, Index
from queue_app.index.profile import Profile
from queue_app.index.requests import Backlog, Request, Taken
from queue_app.index.stats import IndexStats, QueueDepth

__all__ = [
    "MAX_CLAIM",
    "Backlog",
    "Generation",
    "Index",
    "IndexStats",
    "Lease",
    "Profile",
    "Proposal",
    "QueueDepth",
    "Request",
    "Taken",
    "get_index",
    "hide_password",
    "server_url",
]

_build = cache(Index)


def get_index() -> Index:
    """Return this process's index under the settings in force."""
    settings = conf.get()
    return _build(settings.redis_alias, settings.key_prefix)
