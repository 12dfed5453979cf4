"""The audit log: who changed what, through admin, API or commands."""

from __future__ import annotations

from django.contrib import admin
from django.http import HttpRequest
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy as _lazy

from queue_app.admin.mixins import CappedPaginator, ReadOnlyAdmin
from queue_app.admin.task_detail import pretty
from queue_app.dashboard import labels
from queue_app.models import AuditEntry, SavedView

RECENT = 10


def changes_of(target: str, target_id: str) -> list[tuple[AuditEntry, str]]:
    """Return who changed a thing last, with the change in words."""
    found = AuditEntry.objects.filter(target=target, target_id=target_id)[:RECENT]
    return [(entry, changes_text(entry)) for entry in found]


@admin.register(AuditEntry)
class AuditEntryAdmin(ReadOnlyAdmin[AuditEntry]):
    """Every action of a person, newest first."""

    actions = None
    empty_text = _lazy("Nobody has changed anything yet.")
    exact_lookups = ("target", "target_id", "by", "via", "action")
    fields = ("when", "by", "via", "action", "target", "target_id", "count", "reason", "was", "became")
    list_display = ("when", "by", "what", "on", "change", "reason")
    list_filter = ("via", "target")
    list_per_page = 50
    ordering = ("-id",)
    paginator = CappedPaginator
    show_full_result_count = False
    sortable_by = ()

    def get_list_filter(self, request: HttpRequest) -> tuple[object, ...]:  # type: ignore[override]
        """Filter by the door; what was changed is found through the links."""
        return ("via",)

    @admin.display(description=_lazy("when"))
    def when(self, entry: AuditEntry) -> SafeString:
        """Return the time, and how long ago."""
        return format_html(
            '{}<small class="tq-below">{}</small>', labels.exact_moment(entry.at), labels.ago(entry.at, timezone.now())
        )

    @admin.display(description=_lazy("action"))
    def what(self, entry: AuditEntry) -> SafeString:
        """Return the verb, and through which door."""
        return format_html(
            '{}<small class="tq-below">{}</small>', entry.action, _("via %(door)s") % {"door": entry.via}
        )

    @admin.display(description=_lazy("on"))
    def on(self, entry: AuditEntry) -> str:
        """Return what was changed."""
        if entry.target_id:
            return f"{entry.target} {entry.target_id}"
        return _("%(count)d of %(target)s") % {"count": entry.count, "target": entry.target}

    @admin.display(description=_lazy("change"))
    def change(self, entry: AuditEntry) -> str:
        """Return from which value to which, where that is known."""
        return changes_text(entry)

    @admin.display(description=_lazy("before"))
    def was(self, entry: AuditEntry) -> SafeString:
        """Return the values before."""
        return format_html('<pre class="tq-pre">{}</pre>', pretty(entry.before))

    @admin.display(description=_lazy("after"))
    def became(self, entry: AuditEntry) -> SafeString:
        """Return the values after."""
        return format_html('<pre class="tq-pre">{}</pre>', pretty(entry.after))


def changes_text(entry: AuditEntry) -> str:
    """Return the change of an entry in short."""
    names = [*entry.before, *(name for name in entry.after if name not in entry.before and name != "ids")]
    parts = []
    for name in names[:6]:
        if name in entry.before and name in entry.after:
            parts.append(f"{name}: {entry.before[name]} → {entry.after[name]}")
        else:
            parts.append(f"{name}: {entry.before.get(name, entry.after.get(name))}")
    return "; ".join(part[:120] for part in parts)


@admin.register(SavedView)
class SavedViewAdmin(ReadOnlyAdmin[SavedView]):
    """The views that staff have saved; they are made and deleted above the lists."""

    actions = None
    empty_text = _lazy("No view is saved. Filter the tasks or the dead letters, and choose Save this view.")
    list_display = ("name", "of", "user", "shared", "query")
    ordering = ("of", "name")
    sortable_by = ()
