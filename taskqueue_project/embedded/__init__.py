"""PostgreSQL and Valkey out of Python wheels, for `manage.py quickstart` and for the tests.

The servers are real ones, started as child processes of a small guard (`python -m taskqueue_project.embedded`),
which stops them when its owner ends in whatever way: it watches a pipe that the owner holds open. Nothing here imports
Django, because the addresses must be known before Django reads its settings.
"""

from .errors import EmbeddedError
from .owner import EmbeddedServers

__all__ = ["EmbeddedError", "EmbeddedServers"]
