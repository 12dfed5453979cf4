"""Who this process is, as it registers."""

from __future__ import annotations

import os
import socket
import uuid
from importlib.metadata import PackageNotFoundError, version

from queue_app.core.process import process_identity
from queue_app.services.repair.workers import WorkerIdentity

DISTRIBUTION = "django-priority-taskqueue"


def identify(worker_id: uuid.UUID, name: str) -> WorkerIdentity:
    """Return the identity under which this process registers."""
    try:
        release = version(DISTRIBUTION)
    except PackageNotFoundError:  # run from a checkout
        release = "development"
    return WorkerIdentity(
        id=worker_id,
        name=name,
        host=socket.gethostname(),
        pid=os.getpid(),
        process_identity=process_identity(os.getpid()),
        version=release,
    )
