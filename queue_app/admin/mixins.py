"""Shared parts of the admin's pages: strict lookups, capped counts, the audit log, actions on one object."""

import re
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Final

import django
from django.contrib import admin, messages
from django.contrib.admin.exceptions import DisallowedModelAdminLookup
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.admin.utils import quote, unquote
from django.contrib.admin.views.main import ChangeList
from django.core.exceptions import PermissionDenied, ValidationError
from django.core.paginator import Paginator
from django.db.models import FloatField, JSONField, Model
from django.forms import Form
from django.forms.widgets import MediaAsset, Script
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils.decorators import method_decorator
from django.utils.functional import cached_property
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _
from django.views.decorators.http import require_POST

from queue_app.admin.forms import (
    ConfirmForm,
    NamedFieldsForm,
    StoredJSONField,
    TimeField,
    json_block,
    permission,
    posted_reason,
    two_lines,
)
from queue_app.admin.unavailable import answers_without_database
from queue_app.core import shared
from queue_app.core.redaction import Secrets, redact_value
from queue_app.dashboard.labels import translate_error
from queue_app.dashboard.sentences import change_text, entry_sentence
from queue_app.exceptions import InvalidTaskData, TaskQueueError
from queue_app.models import AuditEntry, Worker
from queue_app.models.operation import REASON_LENGTH
from queue_app.registry import all_sensitive_names
from queue_app.services.control.audit import ADMIN, record
from queue_app.services.enqueue.validate import check_reason
from queue_app.sql.database import atomic

# Record what staff change: in Django's history of the object, and in the audit log.

#: Name of the field for the reason of edits in a list.
EDIT_REASON = "edit_reason"


class AuditedAdmin[M: Model](admin.ModelAdmin):  # type: ignore[type-arg]  # generic in the stubs only
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
        fields = {field.name for field in self.opts.fields}  # others only help to fill them in
        names = [name for name in form.changed_data if name in fields]
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
        self._record(request, "delete", queryset, reason=request.POST.get("reason", "").strip())
        return super().log_deletions(request, queryset)


def _plain(value: Any) -> Any:
    """Return a form's value as JSON can store it."""
    return value if isinstance(value, bool | int | float | str | dict | list) or value is None else str(value)


#: Django 6.0 has the link to the history inside the block that these pages replace.
TOOLS_IN_CONTENT = django.VERSION < (6, 1)
#: Maximum number of rows that a list counts, pages through and acts on.
COUNT_LIMIT = 10_000
NO_STORE: Final = {"Cache-Control": "no-store"}
#: Number of changes shown on an object's page.
RECENT = 10
#: Stands in the route of a page for ``object_route``.
OBJECT: Final = "OBJECT"

#: Name in the address of a list -> the condition in words.
_CONDITIONS: Final[Mapping[str, Any]] = {
    "user": _("user"), "concurrency_key": _("key"), "fingerprint": _("cause"), "operation_id": _("operation"),
}  # fmt: skip


class Icon(MediaAsset):
    """The icon of the browser's tab."""

    element_template = '<link rel="icon" href="{path}" type="image/svg+xml">'


def page(route: str, name: str, *, permission: str = "", post: bool = False) -> Callable[[Any], Any]:
    """Give a view, a method of a ``QueueAppAdmin``, an address beside Django's own pages; ``post`` allows POST only.

    With ``permission``, the page is only for users whom the method ``has_<permission>_permission`` admits.
    """

    def mark(show: Callable[..., HttpResponse]) -> Any:
        def view(admin: Any, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
            if permission and not getattr(admin, f"has_{permission}_permission")(request):
                raise PermissionDenied
            return show(admin, request, *args, **kwargs)

        marked: Any = method_decorator(require_POST)(view) if post else view
        marked.taskqueue_page = route, name
        return marked

    return mark


def object_page(name: str, permission: str, *, post: bool = False) -> Callable[[Callable[..., HttpResponse]], Any]:
    """Turn a method ``view(request, object)`` into a page of the object, as ``page`` does."""

    def make_page(show: Callable[..., HttpResponse]) -> Any:
        def view(admin: Any, request: HttpRequest, **address: Any) -> HttpResponse:
            if not admin.has_view_or_change_permission(request):
                raise PermissionDenied
            (pk,) = map(str, address.values())
            obj = admin.get_object(request, unquote(pk))
            response: HttpResponse = admin.gone(request, pk) if obj is None else show(admin, request, obj)
            return response

        return page(f"{OBJECT}/{name.replace('_', '-')}/", name, permission=permission, post=post)(view)

    return make_page


def action_page(
    name: str, permission: str, *, label: Any = "", consequences: Callable[..., Iterable[Any]] | None = None
) -> Callable[[Callable[..., str]], Any]:
    """Turn a method ``act(request, object, reason)``, which returns a message, into the page of a button.

    ``consequences(admin, request, object)`` yields what the action will do, in sentences. If there are any, the first
    post shows them below the ``label`` of the button, and the action follows once staff confirm it with a reason.
    """

    def make_page(act: Callable[..., str]) -> Any:
        def view(admin: Any, request: HttpRequest, obj: Model) -> HttpResponse:
            shown = list(consequences(admin, request, obj)) if consequences else []
            if shown and not ("confirmed" in request.POST and request.POST.get("reason", "").strip()):
                page: HttpResponse = admin.confirm(request, obj, label, shown)
                return page
            response: HttpResponse = admin.act_on(request, obj, partial(act, admin, request))
            return response

        return object_page(name, permission, post=True)(view)

    return make_page


def with_workers(request: HttpRequest, tasks: list[Any]) -> list[Any]:
    """Add to tasks the names of their workers, for those who may see them."""
    names: dict[uuid.UUID, str] = {}
    if request.user.has_perm("queue_app.view_worker"):
        ids = {task.worker_id for task in tasks if task.worker_id is not None}
        names = dict(Worker.objects.filter(pk__in=ids).values_list("pk", "name")) if ids else {}
    for task in tasks:
        task.worker_name = names.get(task.worker_id)
    return tasks


class CappedPaginator(Paginator):  # type: ignore[type-arg]  # generic in the stubs only
    """A paginator that stops counting at ``COUNT_LIMIT``, so that a page never counts millions of rows."""

    @cached_property
    def _counted(self) -> int:
        rows: Any = self.object_list
        return int(rows.order_by().values("pk")[: COUNT_LIMIT + 1].count())

    @cached_property
    def count(self) -> int:
        """The number of rows, at most ``COUNT_LIMIT``."""
        return min(self._counted, COUNT_LIMIT)

    @property
    def is_capped(self) -> bool:
        """Whether counting stopped early: there are more rows."""
        return self._counted > COUNT_LIMIT


class QueueAppAdmin[M: Model](AuditedAdmin[M]):
    """Common behaviour of all pages of the queue."""

    #: Fields that a list's address may filter by, exactly, besides the parameters of its filters.
    exact_lookups: tuple[str, ...] = ()
    empty_text: Any = _("Nothing here yet.")
    gone_text: Any = _("There is no %(name)s %(id)s; it may have been deleted.")
    #: Sentence above the list that says what its rows are.
    lead: Any = ""
    #: (address, name) of lists that staff often want, one click away.
    quick_views: ClassVar[Sequence[tuple[str, Any]]] = ()
    #: How the addresses of an object's pages name it.
    object_route = "<uuid:pk>"
    #: Fields that hold a payload: a page shows them only to users who may view payloads.
    payload_fields: tuple[str, ...] = ()
    #: Field -> what it changes, in units that people use.
    field_help: ClassVar[Mapping[str, Any]] = {}
    #: Whether an object's page shows its latest entries of the audit log.
    shows_changes = False
    may_view_payload = permission("view_payload")
    formfield_overrides: ClassVar[Any] = {JSONField: {"form_class": StoredJSONField}}
    show_facets = admin.ShowFacets.NEVER  # each facet would be one more count over the table

    class Media:
        css = {"all": ("queue_app/admin.css",)}  # noqa: RUF012 - read by Django as it is
        js = (Script("queue_app/admin.js", defer=True), Icon("queue_app/icon.svg"))

    def formfield_for_dbfield(self, db_field: Any, request: Any, **kwargs: Any) -> Any:
        """Let staff write times with units, and say what each setting changes."""
        if isinstance(db_field, FloatField) and db_field.name.endswith("_seconds"):
            kwargs["form_class"] = TimeField
        if db_field.name in self.field_help:
            kwargs["help_text"] = self.field_help[db_field.name]
        return super().formfield_for_dbfield(db_field, request, **kwargs)

    def get_urls(self) -> list[URLPattern]:
        """Put the pages of this class before Django's, whose routes match every path."""
        own = []
        for method in dir(type(self)):
            if (address := getattr(getattr(type(self), method), "taskqueue_page", None)) is not None:
                route, name = address[0].replace(OBJECT, self.object_route), address[1]
                view = self.admin_site.admin_view(getattr(self, method))
                own.append(path(route, view, name=f"queue_app_{self.opts.model_name}_{name}"))
        found = [*own, *super().get_urls()]
        for pattern in found:
            if pattern.callback is not None:  # the redirect of old addresses has none of ours
                pattern.callback = answers_without_database(pattern.callback)
        return found

    def url_of(self, view: str, *args: Any) -> str:
        """Return the address of one of this model's pages."""
        return self.url_of_model(str(self.opts.model_name), view, *args)

    def url_of_model(self, model: str, view: str, *args: Any) -> str:
        """Return the address of a page of another model of the queue."""
        return reverse(f"admin:queue_app_{model}_{view}", args=args, current_app=self.admin_site.name)

    def lookup_allowed(self, lookup: str, value: str, request: HttpRequest) -> bool:
        """Allow known exact lookups only.

        Django allows any lookup on the model's own fields. Staff could then guess hidden values
        prefix by prefix, and start scans without an index.
        """
        filters = {getattr(item, "parameter_name", item) for item in self.get_list_filter(request)}
        return lookup.removesuffix("__exact") in filters.union(self.exact_lookups)

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """Show the list. Answer invalid ids and values with a message; Django answers them with a server error."""
        title = str(self.opts.verbose_name_plural)
        context = {
            "title": title[:1].upper() + title[1:],
            "empty_text": self.empty_text,
            "lead": self.lead,
            "quick_views": self.quick_views,
            "asks_reason": bool(self.list_editable),
            "reason_length": REASON_LENGTH,
        }
        try:
            check_reason(request.POST.get(EDIT_REASON, ""))
            if any("\x00" in text for name in request.GET for text in (name, *request.GET.getlist(name))):
                raise ValidationError("NUL")  # noqa: TRY301 - answered like the other invalid values
            context["conditions"] = self.conditions(request)
            return super().changelist_view(request, context | (extra_context or {}))
        except InvalidTaskData as error:
            self.refuse(request, error)
            return HttpResponseRedirect(request.get_full_path())
        except ValidationError:
            problem = _("The selection or the address contains an invalid value.")
        except DisallowedModelAdminLookup:
            problem = _("This list has no such filter.")
        self.message_user(request, problem, messages.ERROR)
        return HttpResponseRedirect(request.path)

    def refuse(self, request: HttpRequest, error: Exception | str) -> None:
        """Report an error that stopped an action before it changed anything."""
        text = translate_error(error) if isinstance(error, Exception) else error
        self.message_user(request, _("%(error)s Nothing was changed.") % {"error": text}, messages.ERROR)

    def annotate_rows(self, request: HttpRequest, rows: Iterable[Any]) -> None:
        """Add to the rows of a list what its columns show beside the fields, with one query for all rows."""

    def get_changelist_instance(self, request: HttpRequest) -> ChangeList:
        """Annotate the rows; show each filter as a menu above the list, which needs the room beside it."""
        changes = super().get_changelist_instance(request)
        self.annotate_rows(request, changes.result_list)  # the queryset keeps the annotated rows for the columns
        for spec in changes.filter_specs:
            spec.template = "admin/queue_app/includes/filter.html"
        return changes

    def conditions(self, request: HttpRequest) -> list[tuple[str, str, str]]:
        """Return (name, value, address without it) of the conditions of a list that none of its menus shows."""
        found = []
        for name in self.exact_lookups:
            value = request.GET.get(name) or request.GET.get(f"{name}__exact")
            if value and name not in {getattr(each, "parameter_name", "") for each in self.get_list_filter(request)}:
                rest = request.GET.copy()
                for each in (name, f"{name}__exact", "p"):
                    rest.pop(each, None)
                text = self.condition_text(request, name, value)
                found.append((str(_CONDITIONS.get(name, name)), text, f"?{rest.urlencode()}"))
        return found

    def condition_text(self, request: HttpRequest, name: str, value: str) -> str:
        """Return the value of a condition for people."""
        return value[:200]

    def place_of(self, found: Any, also: Iterable[tuple[str, str]] = ()) -> SafeString:
        """Return links to the queue of a task or dead letter, to its user, and ``also`` to (address, name)."""
        queue = format_html(
            '<a href="{}">{}</a>', self.url_of_model("queue", "change", quote(found.queue)), found.queue
        )
        user = [(self.url_of_model("taskstats", "user", found.user), found.user)] if found.user else []
        below = [*user, *also]
        return two_lines(queue, format_html_join(", ", '<a href="{}">{}</a>', below)) if below else queue

    def get_changelist_form(self, request: HttpRequest, **kwargs: Any) -> Any:
        """Label each field of a list for screen readers."""
        return super().get_changelist_form(request, **{"form": NamedFieldsForm} | kwargs)

    def get_fieldsets(self, request: HttpRequest, obj: M | None = None) -> Any:
        """Leave out payloads for those who may not view them; show JSON that no form edits without its secrets.

        Django shows users without the permission to change an object the values of its fields, and no form of ours.
        """
        found = super().get_fieldsets(request, obj)
        if obj is None:
            return found
        hidden = () if self.may_view_payload(request) else self.payload_fields
        edits = self.has_change_permission(request, obj)
        return [
            (title, options | {"fields": [
                name if edits else self._without_secrets(name) for name in options["fields"] if name not in hidden
            ]})
            for title, options in found
        ]  # fmt: skip

    def _without_secrets(self, name: Any) -> Any:
        """Return a field of a page; for a model's JSON, a column that shows what ``displayed_value`` returns."""
        field = next((field for field in self.opts.fields if field.name == name), None)
        if not isinstance(field, JSONField):
            return name
        return admin.display(
            lambda found: json_block(self.displayed_value(found, name)), description=field.verbose_name
        )

    def displayed_value(self, found: M, name: str) -> Any:
        """Return the JSON in a field of an object without secrets."""
        return redact_value(getattr(found, name), Secrets(names=all_sensitive_names()))

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> M | None:
        """Return an object; ``None`` for an id with NUL, which PostgreSQL refuses to compare."""
        return None if "\x00" in object_id else super().get_object(request, object_id, from_field)

    def render_change_form(
        self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any
    ) -> HttpResponse:
        found: M | None = kwargs.get("obj")
        if found is not None:
            common = {"tools_in_content": TOOLS_IN_CONTENT, "reason_length": REASON_LENGTH}
            context |= common | self.page_context(request, found)
        return super().render_change_form(request, context, *args, **kwargs)

    def page_context(self, request: HttpRequest, found: M) -> dict[str, Any]:
        """Return what the template of an object's page needs besides Django's context."""
        if not self.shows_changes:
            return {}
        entries: list[Any] = list(
            AuditEntry.objects.filter(target=self.opts.model_name, target_id=str(found.pk))[:RECENT]
        )
        for each in entries:
            each.thing = getattr(found, "name", "")
        return {"history": self.history_of(entries)}

    def history_of(self, entries: Iterable[AuditEntry]) -> list[tuple[AuditEntry, SafeString, str]]:
        """Return entries of the audit log, each with its sentence and what it changed."""
        return [(each, entry_sentence(each, self.page_of), change_text(each)) for each in entries]

    def page_of(self, model: str, pk: str) -> str:
        return self.url_of_model(model, "change", quote(pk))

    def own_page(self, request: HttpRequest, template: str, title: str, **context: Any) -> HttpResponse:
        """Return a page of this model that Django does not have."""
        common = {"title": title, "opts": self.opts, "media": self.media, "reason_length": REASON_LENGTH}
        context = self.admin_site.each_context(request) | common | context
        return TemplateResponse(request, f"admin/queue_app/{template}", context)

    # -- actions on one object ------------------------------------------------------

    def act_on(self, request: HttpRequest, obj: M, act: Callable[[M, str], Any]) -> HttpResponse:
        """Call ``act(object, reason)`` in a transaction, and go to the object's page with the message it returns."""
        try:
            reason = posted_reason(request)
            with atomic():
                done = act(obj, reason)
        except TaskQueueError as error:
            self.message_user(request, translate_error(error), messages.ERROR)
        else:
            self.message_user(request, done, messages.SUCCESS)
        return HttpResponseRedirect(self.next_page(request) or self.url_of("change", quote(obj.pk)))

    def act_by_form(
        self, request: HttpRequest, form: Form, act: Callable[[dict[str, Any]], HttpResponse], field: str = ""
    ) -> HttpResponse | None:
        """Call ``act(values)`` in a transaction and return its answer; ``None`` if the form must be shown again.

        What is wrong with the values is said at the field that the error names, else at ``field`` or above the form.
        """
        if not form.is_valid():
            return None
        try:
            with atomic():
                return act(form.cleaned_data)
        except InvalidTaskData as error:
            names = (re.split(r"[.\[]", error.field)[0], field)
            form.add_error(next((name for name in names if name in form.fields), None), error.message)
        except TaskQueueError as error:
            self.message_user(request, translate_error(error), messages.ERROR)
        return None

    def confirm(self, request: HttpRequest, obj: M, verb: Any, consequences: Iterable[Any]) -> HttpResponse:
        """Show what an action on an object will do, and ask for its reason."""
        form = ConfirmForm(request.POST if "confirmed" in request.POST else None, initial=request.POST.dict())
        back = self.next_page(request) or self.url_of("change", quote(obj.pk))
        name = getattr(obj, "name", "") or getattr(obj, "task_type", "") or obj
        return self.ask(request, form, f"{verb}: {name}", consequences, original=obj, submit=verb, back=back)

    def ask(
        self, request: HttpRequest, form: ConfirmForm, title: str, consequences: Iterable[Any], **context: Any
    ) -> HttpResponse:
        """Return the page that shows the consequences of an action; its form repeats what was posted."""
        own = {"csrfmiddlewaretoken", "confirmed", *form.fields}
        posted = [(name, value) for name, values in request.POST.lists() if name not in own for value in values]
        template = context.pop("template", "confirm.html")
        return self.own_page(
            request, template, title, form=form, consequences=list(consequences), posted=posted, **context
        )

    def next_page(self, request: HttpRequest) -> str:
        """Return the address of the page to which a button leads back; empty for that of the object."""
        kind, _separator, pk = request.POST.get("next", "").partition("/")
        if kind == "overview":
            return reverse("admin:app_list", args=["queue_app"], current_app=self.admin_site.name)
        if kind == "list":
            return self.url_of("changelist")
        return self.url_of_model("workflow", "change", quote(pk)) if kind == "workflow" and pk else ""

    def act_on_each(self, objects: Iterable[M], act: Callable[[M], Any]) -> tuple[int, int]:
        """Call ``act`` for each object in a transaction of its own; return how many it changed, and how many not."""
        changed = skipped = 0
        for obj in objects:
            try:
                with atomic():
                    act(obj)
                changed += 1
            except TaskQueueError:
                skipped += 1
        return changed, skipped

    def gone(self, request: HttpRequest, pk: str) -> HttpResponse:
        """Go to the list with a message that the object does not exist."""
        self.message_user(request, self.gone_text % {"name": self.opts.verbose_name, "id": pk}, messages.WARNING)
        return HttpResponseRedirect(self.url_of("changelist"))


class FixedRowsAdmin[M: Model](QueueAppAdmin[M]):
    """Rows that no form adds or deletes."""

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: M | None = None) -> bool:
        return False


class ReadOnlyAdmin[M: Model](FixedRowsAdmin[M]):
    """Rows that only services write: no form changes them. The tables may be large."""

    list_per_page = 50
    paginator = CappedPaginator
    show_full_result_count = False
    sortable_by = ()  # most orders would sort the whole table

    def has_change_permission(self, request: HttpRequest, obj: M | None = None) -> bool:
        return False


class SingletonAdmin[M: Model](FixedRowsAdmin[M]):
    """A table of one row: its list redirects to the row's page."""

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        row = self.get_queryset(request).first()
        if row is None or not self.has_view_or_change_permission(request):
            return super().changelist_view(request, extra_context)
        return HttpResponseRedirect(self.url_of("change", row.pk))
