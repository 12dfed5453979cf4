"""OpenTelemetry: spans, if the project has set up a tracer provider, and the trace of the caller.

An enqueue is a producer span. The row keeps its context, so that the spans of the attempt, one for
the wait and one for the run, belong to the same trace. Names and attributes follow the semantic
conventions for messaging.

This module never imports OpenTelemetry. Without it, the only cost is a lookup in ``sys.modules``.
An error of a tracer is logged; tasks are stored and run anyway.
"""

import logging
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import datetime
from traceback import format_exception
from typing import Any, Final, Protocol

from queue_app.core import trace
from queue_app.core.records import ClaimedTask, TaskRow
from queue_app.core.redaction import redact
from queue_app.encryption import hides
from queue_app.encryption.displayed import secrets_of_call
from queue_app.exceptions import Snooze, Suspended, Throttle

SYSTEM: Final = "taskqueue"
_NOTHING: Final[AbstractContextManager[None]] = nullcontext()
_log = logging.getLogger("taskqueue")


def _opentelemetry(name: str) -> Any:
    """Return a module of OpenTelemetry's API, or ``None`` unless it has been imported.

    Another thread may be importing it just now, such as the one that imports the Redis client. Until then its functions
    are missing, and the project cannot have set up a provider.
    """
    module = sys.modules.get(f"opentelemetry.{name}")
    if module is None or getattr(module.__spec__, "_initializing", False):
        return None
    return module


def of_caller() -> str | None:
    """Return the trace context for a new task: that of OpenTelemetry's current span, else ``trace.current``."""
    api = _opentelemetry("trace")
    if api is not None:
        span = api.get_current_span().get_span_context()
        if span.is_valid:
            return f"00-{span.trace_id:032x}-{span.span_id:016x}-{int(span.trace_flags) & 1:02x}"
    return trace.current.get()


def _tracer() -> Any:
    """Return a tracer if the project has set up a provider, else ``None``."""
    api = _opentelemetry("trace")
    if api is None or isinstance(api.get_tracer_provider(), api.ProxyTracerProvider):
        return None
    return api.get_tracer(SYSTEM)


def enqueueing(rows: Sequence[TaskRow]) -> AbstractContextManager[str | None]:
    """Return a context for storing these tasks: one span, which will be the parent of their attempts.

    The context gives their trace context.
    """
    tracer = _tracer()
    return nullcontext(of_caller()) if tracer is None or not rows else _enqueueing(tracer, rows)


@contextmanager
def _enqueueing(tracer: Any, rows: Sequence[TaskRow]) -> Iterator[str | None]:
    api = sys.modules["opentelemetry.trace"]
    spec = rows[0].spec
    queue = spec.queue if all(row.spec.queue == spec.queue for row in rows) else ""
    attributes: dict[str, str | int] = {
        "messaging.system": SYSTEM,
        "messaging.operation.name": "enqueue",
        "messaging.operation.type": "send",
    }
    if queue:
        attributes["messaging.destination.name"] = queue
    if len(rows) == 1:
        attributes |= {"messaging.message.id": str(rows[0].id), "taskqueue.task_type": spec.task_type}
    else:
        attributes["messaging.batch.message_count"] = len(rows)
    parent = trace.current.get()
    context = None
    if parent is not None and not api.get_current_span().get_span_context().is_valid:
        context = _context_of(api, parent)
    span = None
    try:
        span = tracer.start_span(
            f"enqueue {queue}".rstrip(), context=context, kind=api.SpanKind.PRODUCER, attributes=attributes
        )
    except Exception:  # noqa: BLE001
        _log.exception("no span for %s", attributes)
    with _NOTHING if span is None else api.use_span(span, end_on_exit=True):
        yield of_caller()


@contextmanager
def continuing(traceparent: str | None) -> Iterator[None]:
    """Let tasks that are stored in a block belong to a trace, also if the caller is in a span of another one."""
    api, context = _opentelemetry("trace"), _opentelemetry("context")
    with trace.use(traceparent):
        if api is None or context is None or traceparent is None:
            yield
            return
        token = context.attach(_context_of(api, traceparent))
        try:
            yield
        finally:
            context.detach(token)


class Held(Protocol):
    """What a worker holds: its task gets the results of other tasks when it starts."""

    task: ClaimedTask


def attempt(held: Held) -> AbstractContextManager[None]:
    """Return a context for running the attempt: a span, which records an error, after a span for the wait."""
    tracer = _tracer()
    return _NOTHING if tracer is None else _attempt(tracer, held)


@contextmanager
def _attempt(tracer: Any, held: Held) -> Iterator[None]:
    api, task = sys.modules["opentelemetry.trace"], held.task
    run = None
    try:
        parent = _context_of(api, task.traceparent)
        attributes = _attributes_of(task)
        wait = tracer.start_span(
            f"wait {task.queue}", context=parent, attributes=attributes, start_time=_nanoseconds(task.queued_at)
        )
        wait.end(_nanoseconds(max(task.started_at, task.queued_at)))
        attributes |= {"messaging.operation.name": "process", "messaging.operation.type": "process"}
        run = tracer.start_span(
            f"process {task.queue}", context=parent, kind=api.SpanKind.CONSUMER, attributes=attributes
        )
    except Exception:  # noqa: BLE001
        _log.exception("no spans for %s", task.id)
    if run is None:
        yield
        return
    with api.use_span(run, end_on_exit=True, record_exception=False, set_status_on_exception=False):
        try:
            with trace.use(of_caller() or task.traceparent):
                yield
        except BaseException as error:
            _record_error(api, run, error, held.task)
            raise


def _attributes_of(task: ClaimedTask) -> dict[str, str | int | float]:
    attributes: dict[str, str | int | float] = {
        "messaging.system": SYSTEM,
        "messaging.operation.name": "wait",
        "messaging.destination.name": task.queue,
        "messaging.message.id": str(task.id),
        "taskqueue.task_type": task.task_type,
        "taskqueue.attempt": task.attempt,
        "taskqueue.wait_seconds": max(0.0, (task.started_at - task.queued_at).total_seconds()),
    }
    if task.worker_id is not None:
        attributes["messaging.client.id"] = str(task.worker_id)
    return attributes


def _record_error(api: Any, span: Any, error: BaseException, task: ClaimedTask) -> None:
    kind = f"{type(error).__module__}.{type(error).__qualname__}"
    if isinstance(error, (Snooze, Suspended, Throttle)):  # a delay, no failure
        span.set_attribute("taskqueue.put_off", type(error).__name__)
        return
    span.set_attribute("error.type", kind)
    if not hides(task.task_type):
        texts = {"exception.message": str(error), "exception.stacktrace": "".join(format_exception(error))}
        secrets = secrets_of_call(task)
        span.record_exception(error, {name: redact(text, secrets) for name, text in texts.items()})
    span.set_status(api.Status(api.StatusCode.ERROR, type(error).__name__))


def _context_of(api: Any, traceparent: str) -> Any:
    """Return the context of a remote span, given as a W3C traceparent header."""
    span = api.SpanContext(
        trace_id=int(traceparent[3:35], 16),
        span_id=int(traceparent[36:52], 16),
        is_remote=True,
        trace_flags=api.TraceFlags(int(traceparent[53:55], 16)),
    )
    return api.set_span_in_context(api.NonRecordingSpan(span))


def _nanoseconds(at: datetime) -> int:
    return int(at.timestamp() * 1_000_000) * 1_000
