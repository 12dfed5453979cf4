"""Ready hooks for the setting ``HOOKS``."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from importlib import import_module
from typing import Any, ClassVar
from zoneinfo import ZoneInfo

from django.conf import settings
from django.utils import timezone, translation

from queue_app.encryption import hides
from queue_app.exceptions import TaskControl
from queue_app.hooks import Hook, HookCall


class Locale(Hook):
    """Run a task with the language and the time zone that were active where it was enqueued."""

    def enqueue(self, call: HookCall) -> None:
        call.metadata["language"] = translation.get_language()
        call.metadata["time_zone"] = timezone.get_current_timezone_name()

    @contextmanager
    def run(self, call: HookCall) -> Iterator[None]:
        """Restore both; a time zone that this machine does not know is ignored."""
        try:
            zone = ZoneInfo(call.metadata["time_zone"])
        except (KeyError, ValueError, OSError):
            zone = None
        language = call.metadata.get("language", settings.LANGUAGE_CODE)  # missing: stored before the hook was there
        with translation.override(language), timezone.override(zone):
            yield


class ContextVariables(Hook):
    """Run a task with the values of some context variables; make an instance with ``{name: variable}``."""

    variables: ClassVar[dict[str, ContextVar[Any]]] = {}

    def __init__(self, variables: dict[str, ContextVar[Any]] | None = None) -> None:
        self._variables = self.variables if variables is None else variables

    def enqueue(self, call: HookCall) -> None:
        for name, variable in self._variables.items():
            value = variable.get(None)
            if value is not None:
                call.metadata[name] = value

    @contextmanager
    def run(self, call: HookCall) -> Iterator[None]:
        tokens = [
            (variable, variable.set(call.metadata[name]))
            for name, variable in self._variables.items()
            if name in call.metadata
        ]
        try:
            yield
        finally:
            for variable, token in reversed(tokens):
                variable.reset(token)


class Structlog(Hook):
    """Log with the context variables of structlog that were bound where the task was enqueued."""

    def enqueue(self, call: HookCall) -> None:
        if structlog := _installed("structlog"):
            bound = structlog.contextvars.get_contextvars()
            plain = {name: value for name, value in bound.items() if isinstance(value, str | int | float | bool)}
            if plain:
                call.metadata["structlog"] = plain

    def run(self, call: HookCall) -> AbstractContextManager[Any]:
        if structlog := _installed("structlog"):
            values = {**call.metadata.get("structlog", {}), "task_id": str(call.id), "task_type": call.task_type}
            context: AbstractContextManager[Any] = structlog.contextvars.bound_contextvars(**values)
            return context
        return nullcontext()


class Sentry(Hook):
    """Report errors of tasks to Sentry, each in a scope with the task's type, id, queue and attempt."""

    @contextmanager
    def run(self, call: HookCall) -> Iterator[None]:
        """Run the task in a scope of its own; do nothing if ``sentry_sdk`` is not installed."""
        sentry = _installed("sentry_sdk")
        if sentry is None:
            yield
            return
        with sentry.isolation_scope() as scope:
            scope.set_transaction_name(call.task_type)
            for name, value in (("task_id", call.id), ("queue", call.queue), ("attempt", call.attempt)):
                scope.set_tag(f"taskqueue.{name}", str(value))
            try:
                yield
            except Exception as error:
                if hides(call.task_type):  # its frames hold arguments
                    sentry.capture_message(f"{type(error).__name__} in {call.task_type}", level="error")
                elif not isinstance(error, TaskControl):
                    sentry.capture_exception(error)
                raise


def _installed(name: str) -> Any:
    """Return an optional package, or ``None``; this package depends on none of them."""
    try:
        return import_module(name)
    except ImportError:
        return None
