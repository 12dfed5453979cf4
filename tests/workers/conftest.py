"""The engine's fixtures, and workers that a test moves step by step."""

# ruff: noqa: F401, F811 - fixtures are used by name
import logging
import time
from collections.abc import Callable, Iterator

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from queue_app.telemetry import tracing
from queue_app.workers import progress
from tests.integration.processes import Fleet, fleet_on
from tests.queue_app.conftest import after, before, engine, forgetful_process, history, index, index_way, rows, scene
from tests.queue_app.services.conftest import transactional_db
from tests.workers.stage import StillScheduler, StillWorker


class Clock:
    """A monotonic time that goes on when the test moves ``now``, and by ``step`` with each look at it."""

    def __init__(self) -> None:
        self.now, self.step = time.monotonic(), 0.0

    def monotonic(self) -> float:
        """Return the time."""
        self.now += self.step
        return self.now


@pytest.fixture
def clock(monkeypatch) -> Clock:
    """The monotonic time of this process."""
    made = Clock()
    monkeypatch.setattr(time, "monotonic", made.monotonic)
    return made


@pytest.fixture
def hire(engine) -> Callable[..., StillWorker]:
    """Return a function that makes registered workers whose tasks end only when the test says so."""
    return StillWorker


@pytest.fixture
def make(engine, settings):
    """Make schedulers whose lead expires after ``leader_seconds``; the test decides when a job is due."""

    def make(leader_seconds: float = 30, **options) -> StillScheduler:
        settings.TASKQUEUE = {**settings.TASKQUEUE, "SCHEDULER": {"LEADER_SECONDS": leader_seconds}}
        made = StillScheduler(**options)
        for job in made.jobs:
            job.interval = 3600.0
        return made

    return make


@pytest.fixture
def captured() -> Iterator[None]:
    """Capture what attempts log, as a worker's process does."""
    factory = logging.getLogRecordFactory()
    progress.install()
    yield
    logging.setLogRecordFactory(factory)
    root = logging.getLogger()
    root.handlers = [handler for handler in root.handlers if not isinstance(handler, progress.Capture)]


@pytest.fixture
def exporter(monkeypatch) -> InMemorySpanExporter:
    """Where the spans of one test go, with a provider as a project sets one up."""
    found, provider = InMemorySpanExporter(), TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(found))
    monkeypatch.setattr(tracing, "_tracer", lambda: provider.get_tracer("test"))
    return found


@pytest.fixture
def log(tmp_path) -> str:
    """The path of a file to which tasks append."""
    return str(tmp_path / "log")


@pytest.fixture
def warnings_logged(caplog) -> Callable[[], list[str]]:
    """Return a function that lists what the runtime has logged from the level warning on."""
    caplog.set_level(logging.INFO, "taskqueue")
    return lambda: [r.getMessage() for r in caplog.records if r.name == "taskqueue" and r.levelno >= logging.WARNING]


@pytest.fixture
def fleet(engine, process_env, tmp_path) -> Iterator[Fleet]:
    """Start real processes on this test's database and index."""
    with fleet_on(process_env, tmp_path) as processes:
        yield processes
