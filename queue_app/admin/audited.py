"""Record what staff change: in Django's history of the object, and in the audit log."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.contrib.admin.models import CHANGE, LogEntry
from django.db.models import Model
from django.http import HttpRequest

from queue_app.core import shared
from queue_app.services.control.audit import ADMIN, record

#: Name of the field for the reason of edits in a list.
EDIT_REASON = "edit_reason"

if TYPE_CHECKING:

    class BaseAdmin[M: Model](admin.ModelAdmin[M]):
        """The admin of a model ``M``."""

else:

    class BaseAdmin[M](admin.ModelAdmin):
        """The admin of a model ``M``."""


class AuditedAdmin[M: Model](BaseAdmin[M]):
    """An admin whose edits and actions are recorded with old and new values and a reason."""

    def audit(  # noqa: PLR0913 - who did what to what, from which value to which, and why
        self,
        request: HttpRequest,
        objects: Iterable[M],
        message: str,
        *,
        action: str = "change",
        before: Mapping[str, Any] | None = None,
        after: Mapping[str, Any] | None = None,
        reason: str = "",
    ) -> None:
        """Write one LogEntry for each object, and one entry of the audit log for all of them.

        Call it in the transaction of the change.
        """
        entries = list(objects)
        if entries:
            self.log_action_of(request, entries, message, reason)
            self._record(request, action, entries, before=before, after=after, reason=reason)

    def log_action_of(
        self, request: HttpRequest, objects: Iterable[Model], message: str, reason: str = "", flag: int = CHANGE
    ) -> None:
        """Write one LogEntry for each object, of an action whose service writes the entry of the audit log itself."""
        text = f"{message.rstrip('.')}: {reason}" if reason else message
        LogEntry.objects.log_actions(request.user.pk, list(objects), flag, text)  # type: ignore[arg-type]
        shared.forget()  # staff want to see the effect of their action at once

    def _record(self, request: HttpRequest, action: str, objects: Iterable[M], **facts: Any) -> None:
        name, ids = str(self.opts.model_name), [entry.pk for entry in objects]
        record(f"{name}.{action}", name, ids, by=request.user.get_username(), via=ADMIN, **facts)
        shared.forget()  # staff want to see the effect of their action at once

    def construct_change_message(self, request: HttpRequest, form: Any, formsets: Any, add: bool = False) -> Any:  # noqa: FBT001, FBT002 - Django's signature
        """Return the text of an edit for the history: old and new values, and the reason."""
        names = [name for name in form.changed_data if name != "reason"]
        before = {} if add else {name: _plain(form.initial.get(name)) for name in names}
        after = {name: _plain(form.cleaned_data.get(name)) for name in names}
        reason = str(form.cleaned_data.get("reason") or request.POST.get(EDIT_REASON, "")).strip()
        request.taskqueue_edit = {"before": before, "after": after, "reason": reason}  # type: ignore[attr-defined]
        if add:
            return "Added."
        changes = [f"{name}: {before[name]!r} → {after[name]!r}" for name in names]
        return (", ".join(changes) or "No change") + (f". {reason}" if reason else "")

    def log_change(self, request: HttpRequest, obj: M, message: Any) -> LogEntry:
        self._record(request, "edit", [obj], **getattr(request, "taskqueue_edit", {}))
        return super().log_change(request, obj, message)

    def log_addition(self, request: HttpRequest, obj: M, message: Any) -> LogEntry:
        self._record(request, "add", [obj], **getattr(request, "taskqueue_edit", {}))
        return super().log_addition(request, obj, message)

    def log_deletions(self, request: HttpRequest, queryset: Any) -> Any:
        self._record(request, "delete", queryset)
        return super().log_deletions(request, queryset)


def _plain(value: Any) -> Any:
    """Return a form's value as JSON can store it."""
    return value if isinstance(value, bool | int | float | str | dict | list) or value is None else str(value)
