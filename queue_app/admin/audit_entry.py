"""The audit log, and the views that staff have saved."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils import timezone
from django.utils.safestring import SafeString
from django.utils.text import capfirst
from django.utils.translation import gettext as _, gettext_lazy as _lazy

from queue_app import models
from queue_app.admin.dead_letter import cause_texts
from queue_app.admin.filters import choice_filter
from queue_app.admin.forms import column, two_lines
from queue_app.admin.mixins import ReadOnlyAdmin
from queue_app.dashboard import labels
from queue_app.dashboard.sentences import change_text, changed_values, entry_sentence, is_key

#: Kind of an object -> its model, and the field by which people know it.
_NAMES: Final[Mapping[str, tuple[Any, str]]] = {
    "task": (models.Task, "task_type"), "deadletter": (models.DeadLetter, "task_type"),
    "workflow": (models.Workflow, "name"), "worker": (models.Worker, "name"), "schedule": (models.Schedule, "name"),
    "apikey": (models.ApiKey, "name"), "workertoken": (models.WorkerToken, "name"), "limit": (models.Limit, "name"),
}  # fmt: skip
#: Number of newest entries in which the filters look for names.
RECENT_NAMES = 2000


def _recent(name: str) -> Callable[[], list[str]]:
    """Return a function that returns the values of a field among the newest entries."""

    def names() -> list[str]:
        return sorted(set(models.AuditEntry.objects.order_by("-id").values_list(name, flat=True)[:RECENT_NAMES]) - {""})

    return names


def _of(name: str) -> Callable[[QuerySet[Any], str], QuerySet[Any]]:
    return lambda rows, value: rows.filter(**{name: value})


class AuditEntryAdmin(ReadOnlyAdmin[models.AuditEntry]):
    """Every change that a person made by admin, API or command, newest first."""

    actions = None
    change_form_template = "admin/queue_app/auditentry/change_form.html"
    empty_text = _lazy("No changes yet.")
    exact_lookups = ("target", "target_id", "by", "via", "action")
    list_display = ("when", "what", "change", "reason")
    list_filter = (
        choice_filter(_lazy("who"), "by", _recent("by"), _of("by")),
        choice_filter(_lazy("kind"), "target", _recent("target"), _of("target")),
        choice_filter(_lazy("action"), "action", _recent("action"), _of("action")),
        "via",
    )
    ordering = ("-id",)
    search_fields = ("by", "target_id", "reason", "action")
    search_help_text = _lazy("Part of a user, an object's name or id, a reason, an action.")

    plural = _lazy("changes")
    change = column(_lazy("change"), lambda entry: labels.with_times(change_text(entry)))

    @admin.display(description=_lazy("when"))
    def when(self, entry: models.AuditEntry) -> SafeString:
        return two_lines(labels.exact_moment(entry.at), labels.ago(entry.at, timezone.now()))

    @admin.display(description=_lazy("what"))
    def what(self, entry: models.AuditEntry) -> SafeString:
        via = _("via %(interface)s") % {"interface": labels.word(entry.via)}
        return two_lines(entry_sentence(entry, self.page_of), via)

    def annotate_rows(self, request: HttpRequest, rows: Iterable[Any]) -> None:
        """Add the names of what was changed, with one query a kind, and say causes of dead letters in words."""
        entries = list(rows)
        for target, (model, field) in _NAMES.items():
            ids = {entry.target_id for entry in entries if entry.target == target and is_key(entry)}
            if ids and request.user.has_perm(f"queue_app.view_{target}"):
                names = dict(model.objects.filter(pk__in=ids).values_list("pk", field))
                shown = {
                    str(pk): name.rpartition(".")[2] if field == "task_type" else name for pk, name in names.items()
                }
                for entry in entries:
                    entry.thing = (
                        shown.get(entry.target_id, "") if entry.target == target else getattr(entry, "thing", "")
                    )
        filters = [entry.after["filter"] for entry in entries if isinstance(entry.after.get("filter"), dict)]
        causes = cause_texts(request, {wanted["fingerprint"] for wanted in filters if wanted.get("fingerprint")})
        for wanted in filters:
            if wanted.get("fingerprint"):
                wanted["cause"] = causes[wanted.pop("fingerprint")]

    def page_context(self, request: HttpRequest, found: models.AuditEntry) -> dict[str, Any]:
        self.annotate_rows(request, [found])
        return {
            "title": capfirst(self.opts.verbose_name),  # "Change" is a verb in Django's catalogue
            "subtitle": "",
            "sentence": entry_sentence(found, self.page_of),
            "values": list(changed_values(found)),
        }


class SavedViewAdmin(ReadOnlyAdmin[models.SavedView]):
    """The views that staff have saved. Staff save and delete them above the lists."""

    actions = None
    empty_text = _lazy("No saved view. Filter the tasks or the dead letters, then choose Save this view.")
    list_display = ("name", "of", "user", "shared", "query")
    ordering = ("of", "name")
