"""What tests of the doctor share."""

from datetime import timedelta

from django.utils import timezone

from queue_app.core.reasons import Finding, Level
from queue_app.models import Worker
from queue_app.services.worker.registration import WorkerIdentity, register


def only(findings) -> Finding:
    """Return the only finding."""
    [finding] = findings
    return finding


def assert_finding(check, level: Level, text: str) -> None:
    """Assert the only finding of a check, and that it has a hint unless it is ok."""
    finding = only(check())
    assert (finding.level, text in finding.message) == (level, True), finding
    assert bool(finding.hint) == (level is not Level.OK)


def register_live(worker, *, silent: float = 0, **options) -> None:
    """Register the row of a worker."""
    identity = WorkerIdentity(id=worker.id, name="w1", host="h", pid=7, process_identity="elsewhere", version="1")
    register(identity, worker.profile, concurrency=4, heartbeat_seconds=10)
    Worker.objects.filter(pk=worker.id).update(last_heartbeat_at=timezone.now() - timedelta(seconds=silent), **options)
