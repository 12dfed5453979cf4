"""How idle workers are called. For now they look every second."""

import time
import uuid
from collections.abc import Iterable

from queue_app.index import WorkerMessage


def wait(worker_id: uuid.UUID, seconds: float) -> WorkerMessage | None:  # noqa: ARG001 - the same for all
    """Wait up to ``seconds`` until there may be work or a row of the worker changed; return which, or ``None``."""
    time.sleep(min(1.0, seconds))
    return WorkerMessage.WAKE_UP


def tell(worker_ids: Iterable[uuid.UUID]) -> None:
    """Let workers read their rows now."""


def wake() -> None:
    """Wake one idle worker: work may have come."""
