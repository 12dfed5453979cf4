"""Who a worker says it is."""

import os
import uuid

from queue_app.core.process import process_identity
from queue_app.workers.identity import identify


def test_identify():
    worker_id = uuid.uuid4()
    found = identify(worker_id, "me")
    assert (found.id, found.name, found.pid) == (worker_id, "me", os.getpid())
    assert found.process_identity == process_identity(os.getpid())
    assert len(found.process_identity) <= 255
    assert found.host
    assert found.version
