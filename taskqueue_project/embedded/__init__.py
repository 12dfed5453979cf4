"""PostgreSQL and Valkey from Python wheels, for `manage.py quickstart` and for the tests.

The servers are child processes of a guard (`python -m taskqueue_project.embedded`). The guard watches a pipe that its
owner holds open, and stops the servers when the owner ends, even by a kill. Nothing here imports Django, because
Django's settings need the addresses.
"""

from .data_directory import EmbeddedError
from .owner import EmbeddedServers

__all__ = ["EmbeddedError", "EmbeddedServers"]
