"""What the admin's pages have in common: read-only rows, capped counts, strict lookups, audit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import django
from django import forms
from django.contrib import admin, messages
from django.contrib.admin.exceptions import DisallowedModelAdminLookup
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.admin.views.main import ChangeList
from django.core.exceptions import ValidationError
from django.core.paginator import Paginator
from django.db.models import Model
from django.forms.widgets import Script
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils.functional import cached_property
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _

from queue_app.dashboard import labels, live
from queue_app.exceptions import InvalidTaskData
from queue_app.models.audit_entry import REASON_LENGTH
from queue_app.services.control.audit import ADMIN, record
from queue_app.services.enqueue.validate import check_reason

if TYPE_CHECKING:

    class BaseAdmin[M: Model](admin.ModelAdmin[M]):
        """The admin of a model ``M``."""
else:

    class BaseAdmin[M](admin.ModelAdmin):
        """The admin of a model ``M``."""


if TYPE_CHECKING:
    _Paginator = Paginator[Any]
    PlainModelForm = forms.ModelForm[Any]
else:
    _Paginator = Paginator
    PlainModelForm = forms.ModelForm

#: Django 6.0 has the link to the history inside the block that these pages replace.
TOOLS_IN_CONTENT = django.VERSION < (6, 1)
#: What is posted with edits in a list, beside their one button.
EDIT_REASON = "edit_reason"
FILTER_TEMPLATE = "admin/queue_app/includes/filter.html"
#: Lists count, page and act on at most so many rows; a filter finds the rest.
COUNT_LIMIT = 10_000


class CappedPaginator(_Paginator):
    """A paginator that stops counting at ``COUNT_LIMIT``: a page never costs a count of millions."""

    @cached_property
    def count(self) -> int:
        """The number of rows, at most ``COUNT_LIMIT``."""
        rows: Any = self.object_list
        return int(rows.order_by().values("pk")[:COUNT_LIMIT].count())

    @property
    def is_capped(self) -> bool:
        """Whether there may be more rows than were counted."""
        return self.count >= COUNT_LIMIT


class QueueAppAdmin[M: Model](BaseAdmin[M]):
    """Common behaviour of all pages of the queue."""

    #: Fields that an address may filter by, exactly; the parameters of list filters come on top.
    exact_lookups: tuple[str, ...] = ()
    #: What an empty list says.
    empty_text: Any = _("Nothing here yet.")
    show_facets = admin.ShowFacets.NEVER  # each facet would be one more count over the table

    class Media:
        css = {"all": ("queue_app/admin.css",)}  # noqa: RUF012 - read by Django as it is
        js = (Script("queue_app/admin.js", defer=True),)

    def lookup_allowed(self, lookup: str, value: str, request: HttpRequest) -> bool:
        """Allow known exact lookups only.

        Django allows any lookup of the model's own fields: enough to guess hidden values by
        their beginnings, and to ask for unindexed scans.
        """
        filters = {getattr(item, "parameter_name", item) for item in self.get_list_filter(request)}
        return lookup.removesuffix("__exact") in filters.union(self.exact_lookups)

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """Answer ids and values that are none with a message; Django's own answer is a server error."""
        title = str(self.opts.verbose_name_plural)
        context = {
            "title": title[:1].upper() + title[1:],
            "empty_text": self.empty_text,
            "asks_reason": bool(self.list_editable),
            "reason_length": REASON_LENGTH,
        }
        try:
            check_reason(request.POST.get(EDIT_REASON, ""), REASON_LENGTH)
            return super().changelist_view(request, context | (extra_context or {}))
        except InvalidTaskData as error:
            self.message_user(request, _("%(error)s Nothing was changed.") % {"error": error.message}, messages.ERROR)
            return HttpResponseRedirect(request.get_full_path())
        except ValidationError:
            said = _("Something in the selection or the address is no valid value.")
            self.message_user(request, said, messages.ERROR)
            return HttpResponseRedirect(request.path)
        except DisallowedModelAdminLookup:
            self.message_user(request, _("This list cannot be filtered like that."), messages.ERROR)
            return HttpResponseRedirect(request.path)

    def get_changelist_instance(self, request: HttpRequest) -> ChangeList:
        """Offer each filter as a menu that names its choice: the list needs the room beside it."""
        changes = super().get_changelist_instance(request)
        for spec in changes.filter_specs:
            spec.template = FILTER_TEMPLATE
        return changes

    def get_changelist_form(self, request: HttpRequest, **kwargs: Any) -> Any:
        """Name each field of a list for those who do not see the head of its column."""
        return super().get_changelist_form(request, **{"form": NamedFieldsForm} | kwargs)

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> M | None:
        """Find no row under an id that PostgreSQL cannot even compare."""
        return None if "\x00" in object_id else super().get_object(request, object_id, from_field)

    def audit(  # noqa: PLR0913 - who did what to what, from which to which, and why
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

        To be called in the transaction of the change.
        """
        entries = list(objects)
        if not entries:
            return
        text = f"{message.rstrip('.')}: {reason}" if reason else message
        LogEntry.objects.log_actions(request.user.pk, entries, CHANGE, text)  # type: ignore[arg-type]
        name = str(self.opts.model_name)
        record(
            f"{name}.{action}", name, [entry.pk for entry in entries], by=request.user.get_username(), via=ADMIN,
            before=before, after=after, reason=reason,
        )  # fmt: skip
        live.forget()  # whoever acts wants to see it

    # -- edits by form -----------------------------------------------------------

    def construct_change_message(self, request: HttpRequest, form: Any, formsets: Any, add: bool = False) -> Any:  # noqa: FBT001, FBT002 - Django's signature
        """Return what the history says of an edit: from which value to which, and why."""
        if add:
            return "Added."
        names = [name for name in form.changed_data if name != "reason"]
        before = {name: plain(form.initial.get(name)) for name in names}
        after = {name: plain(form.cleaned_data.get(name)) for name in names}
        reason = str(form.cleaned_data.get("reason") or request.POST.get(EDIT_REASON, "")).strip()
        request.taskqueue_edit = (before, after, reason)  # type: ignore[attr-defined]
        changes = [f"{name}: {before[name]!r} → {after[name]!r}" for name in names]
        return (", ".join(changes) or "No change") + (f". {reason}" if reason else "")

    def log_change(self, request: HttpRequest, obj: M, message: Any) -> LogEntry:
        """Log an edit twice: for Django's history, and for the audit log."""
        before, after, reason = getattr(request, "taskqueue_edit", ({}, {}, ""))
        self._record(request, "edit", [obj.pk], before, after, reason)
        return super().log_change(request, obj, message)

    def log_addition(self, request: HttpRequest, obj: M, message: Any) -> LogEntry:
        """Log a new row twice, too."""
        self._record(request, "add", [obj.pk], {}, {}, "")
        return super().log_addition(request, obj, message)

    def log_deletions(self, request: HttpRequest, queryset: Any) -> Any:
        """Log deleted rows twice, too."""
        self._record(request, "delete", [obj.pk for obj in queryset], {}, {}, "")
        return super().log_deletions(request, queryset)

    def _record(  # noqa: PLR0913, PLR0917 - as audit
        self, request: HttpRequest, action: str, ids: list[Any], before: Any, after: Any, reason: str
    ) -> None:
        name = str(self.opts.model_name)
        record(
            f"{name}.{action}", name, ids, by=request.user.get_username(), via=ADMIN,
            before=before, after=after, reason=reason,
        )  # fmt: skip
        live.forget()

    def url_of(self, view: str, *args: Any) -> str:
        """Return the address of one of this model's pages."""
        opts = self.opts
        return reverse(f"admin:{opts.app_label}_{opts.model_name}_{view}", args=args, current_app=self.admin_site.name)


def time_of(name: str, title: Any) -> Callable[[Any, Any], SafeString | None]:
    """Return a method of a ``ModelAdmin``: a column for a time, written in the zone of whoever looks."""

    @admin.display(description=title, ordering=name)
    def column(_admin: Any, found: Any) -> SafeString | None:
        value = getattr(found, name)
        return None if value is None else labels.exact_moment(value)

    return column


def plain(value: Any) -> Any:
    """Return a value of a form as JSON can hold it."""
    return value if isinstance(value, bool | int | float | str | dict | list) or value is None else str(value)


class NamedFieldsForm(PlainModelForm):
    """A row of a list that can be edited there: Django gives its fields no labels."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for field in self.fields.values():
            field.widget.attrs["aria-label"] = f"{self.instance}: {field.label}"


class ReasonForm(PlainModelForm):
    """A form that asks why."""

    reason = forms.CharField(
        label=_("Reason of the change"),
        required=False,
        max_length=REASON_LENGTH,
        widget=forms.TextInput({"class": "vTextField"}),
        help_text=_("For whoever reads the history later."),
    )


class FixedRowsAdmin[M: Model](QueueAppAdmin[M]):
    """Rows that always exist: no form adds or deletes them."""

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Forbid adding."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: M | None = None) -> bool:
        """Forbid deletion."""
        return False


class ReadOnlyAdmin[M: Model](FixedRowsAdmin[M]):
    """Rows that only services write: no form changes them either."""

    def has_change_permission(self, request: HttpRequest, obj: M | None = None) -> bool:
        """Forbid changes by form."""
        return False


class SingletonAdmin[M: Model](FixedRowsAdmin[M]):
    """A table of one row: its list is its page."""

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """Go to the one row, for those who may see it."""
        row = self.get_queryset(request).first()
        if row is None or not self.has_view_or_change_permission(request):
            return super().changelist_view(request, extra_context)
        return HttpResponseRedirect(self.url_of("change", row.pk))
