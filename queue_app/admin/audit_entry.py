"""The audit log, and the views that staff have saved."""

from django.contrib import admin
from django.utils import timezone
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy as _lazy

from queue_app.admin.columns import changes_text, column, preformatted, two_lines
from queue_app.admin.mixins import ReadOnlyAdmin
from queue_app.admin.task_detail import pretty
from queue_app.dashboard import labels
from queue_app.models import AuditEntry, SavedView


@admin.register(AuditEntry)
class AuditEntryAdmin(ReadOnlyAdmin[AuditEntry]):
    """Every change that a person made by admin, API or command, newest first."""

    actions = None
    empty_text = _lazy("No changes yet.")
    exact_lookups = ("target", "target_id", "by", "via", "action")
    fields = ("when", "by", "via", "action", "target", "target_id", "count", "reason", "was", "became")
    list_display = ("when", "by", "what", "on", "change", "reason")
    list_filter = ("via",)  # links filter by what was changed
    ordering = ("-id",)

    what = column(
        _lazy("action"), lambda entry: two_lines(entry.action, _("via %(interface)s") % {"interface": entry.via})
    )
    change = column(_lazy("change"), lambda entry: labels.with_times(changes_text(entry)))
    was = column(_lazy("before"), lambda entry: preformatted(labels.with_times(pretty(entry.before))))
    became = column(_lazy("after"), lambda entry: preformatted(labels.with_times(pretty(entry.after))))

    @admin.display(description=_lazy("when"))
    def when(self, entry: AuditEntry) -> SafeString:
        """Return the time, and how long ago."""
        return two_lines(labels.exact_moment(entry.at), labels.ago(entry.at, timezone.now()))

    @admin.display(description=_lazy("on"))
    def on(self, entry: AuditEntry) -> str:
        """Return what was changed."""
        if entry.target_id:
            return f"{entry.target} {entry.target_id}"
        return _("%(target)s (%(count)d)") % {"count": entry.count, "target": entry.target}


@admin.register(SavedView)
class SavedViewAdmin(ReadOnlyAdmin[SavedView]):
    """The views that staff have saved. Staff save and delete them above the lists."""

    actions = None
    empty_text = _lazy("No saved view. Filter the tasks or the dead letters, then choose Save this view.")
    list_display = ("name", "of", "user", "shared", "query")
    ordering = ("of", "name")
