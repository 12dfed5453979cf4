"""The pages of operations: staff watch and stop actions on many tasks."""

import html
from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

from django.contrib import admin, messages
from django.contrib.admin.utils import quote
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils import timezone
from django.utils.html import format_html, format_html_join, strip_tags
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _, gettext_lazy as _lazy, ngettext

from queue_app.admin.dead_letter import cause_texts
from queue_app.admin.forms import column, time_column, two_lines
from queue_app.admin.mixins import ReadOnlyAdmin, action_page, with_workers
from queue_app.core.redaction import Secrets, redact_value
from queue_app.dashboard import labels
from queue_app.dashboard.labels import word
from queue_app.dashboard.sentences import filter_parts, operation_sentence
from queue_app.models import Operation, Task
from queue_app.models.operation import PERMISSIONS, OperationKind, OperationState
from queue_app.registry import all_sensitive_names
from queue_app.services.operations.request import cancel_operation, get_operation
from queue_app.services.operations.run import changed_tasks

#: Number of changed tasks that a page lists.
MAX_LISTED: Final = 50
#: Length of a value of a filter.
MAX_SHOWN: Final = 200
#: Field of a filter -> the page of its value.
_LINKS: Final = {
    "queue": ("queue", "change"), "queues": ("queue", "change"), "user": ("taskstats", "user"),
    "task_type": ("taskstats", "type"), "task_types": ("taskstats", "type"),
}  # fmt: skip
#: Fields that only replays show.
OF_REPLAYS: Final = ("stop_after_failures", "failed_again_now", "letters")


class OperationAdmin(ReadOnlyAdmin[Operation]):
    actions = ("stop_selected",)
    change_form_template = "admin/queue_app/operation/change_form.html"
    fields = ("status", "progress", "selection", "extent", *OF_REPLAYS, "reason", "created", "finished")
    list_display = ("what", "status", "progress", "created", "reason")
    list_display_links = None
    search_fields = ("by", "reason")
    list_filter = ("state", "kind", "target")
    ordering = ("-id",)

    created = column(_lazy("started"), lambda operation: labels.ago(operation.created_at, timezone.now()))
    finished = time_column("finished_at", _lazy("finished"))
    failed_again_now = column(_lazy("failed again"), lambda operation: get_operation(operation.pk).failed_again)

    def get_fields(self, request: HttpRequest, obj: Operation | None = None) -> tuple[str, ...]:
        """Leave out what other kinds need, and what the user may not read."""
        is_replay = obj is not None and obj.kind == OperationKind.REPLAY
        left_out: tuple[str, ...] = () if is_replay else OF_REPLAYS
        if not self.may_view_payload(request):  # a filter may name parameters, or words of an error
            left_out += ("selection",)
        return tuple(name for name in self.fields if name not in left_out)

    @admin.display(description=_lazy("operation"))
    def what(self, operation: Any) -> SafeString:
        return two_lines(operation_sentence(operation, self.url_of("change", operation.pk)), operation.wanted)

    def annotate_rows(self, request: HttpRequest, rows: Any) -> None:
        """Add the filters in words, with links, for those who may read them."""
        operations = list(rows)
        may_read = self.may_view_payload(request)  # a filter may name parameters, or words of an error
        marks = [operation.filter.get("fingerprint") for operation in operations] if may_read else []
        causes = cause_texts(request, filter(None, marks))
        for operation in operations:
            operation.wanted = self._linked(operation.filter, causes) if may_read else ""

    def _linked(self, wanted: Mapping[str, Any], causes: Mapping[str, str]) -> SafeString:
        """Return a filter in words without its secrets; queues, task types, users and causes are links."""
        parts = []
        for name, label, shown in filter_parts(redact_value(wanted, Secrets(names=all_sensitive_names()))):
            url, text, title = "", shown, label
            if name in _LINKS and "," not in shown:
                url = self.url_of_model(*_LINKS[name], quote(shown))
            elif name == "fingerprint":
                title, text = _("cause"), causes[shown]
                url = f"{self.url_of_model('deadletter', 'changelist')}?fingerprint={quote(shown)}"
            text = text[:MAX_SHOWN]
            linked = format_html('<a href="{}">{}</a>', url, text) if url else labels.with_times(text)
            parts.append(format_html("{}: {}", title, linked) if shown else title)
        return format_html_join("; ", "{}", ((part,) for part in parts))

    @admin.display(description=_lazy("state"))
    def status(self, operation: Operation) -> SafeString:
        label = format_html('<span class="tq-label tq-operation-{}">{}</span>', operation.state, word(operation.state))
        if operation.is_waiting_for_the_first:
            why = _("waits for the first %(n)d") % {"n": operation.stop_after_failures}
        elif operation.state == OperationState.STOPPED:
            why = _("the first %(n)d failed again") % {"n": operation.stop_after_failures}
        elif operation.ended_by:
            why = _("by %(name)s") % {"name": operation.ended_by}
        else:
            return label
        return two_lines(label, why)

    @admin.display(description=_lazy("progress"))
    def progress(self, operation: Operation) -> SafeString:
        skipped = _(", %(n)d left alone") % {"n": operation.skipped} if operation.skipped else ""
        return format_html(
            '<progress max="{}" value="{}" aria-label="{}" class="{}"></progress> <span class="tq-nowrap">{}{}</span>',
            max(operation.total, 1),
            operation.changed + operation.skipped,
            _("progress"),
            "tq-held-bar" if operation.state == OperationState.STOPPED else "",
            _("%(done)d of %(total)d") % {"done": operation.changed, "total": operation.total},
            skipped,
        )

    @admin.display(description=_lazy("filter"))
    def selection(self, operation: Any) -> SafeString | str:
        return operation.wanted or _("all %(things)s") % {"things": word(operation.target)}

    @admin.display(description=_lazy("how many"))
    def extent(self, operation: Operation) -> str:
        """Return how many, which first, and how fast."""
        newest = "order" in operation.arguments
        first = _("newest first") if newest else _("oldest first")
        many = _("only %(n)s") % {"n": f"{operation.limit:,}"} if operation.limit else _("all")
        pace = _("%(n)s per second") % {"n": f"{operation.rate:g}"} if operation.rate else _("as fast as possible")
        return f"{many}, {first}, {pace}"

    @admin.display(description=_lazy("dead letters"))
    def letters(self, operation: Operation) -> SafeString:
        url = self.url_of_model("deadletter", "changelist")
        return format_html('<a href="{}?operation_id={}">{}</a>', url, operation.pk, _("replayed by this operation"))

    # -- stop ----------------------------------------------------------------------

    def has_stop_permission(self, request: HttpRequest) -> bool:
        """Return whether the user may stop operations of some kind: the kinds that the user may start.

        A page offers it only while one of these kinds runs.
        """
        kinds = [kind for kind, permission in PERMISSIONS.items() if request.user.has_perm(permission)]
        running = Operation.objects.filter(state=OperationState.RUNNING, kind__in=kinds)
        return bool(kinds) and (request.method == "POST" or running.exists())

    @admin.action(description=_lazy("Stop selected operations"), permissions=["stop"])
    def stop_selected(self, request: HttpRequest, queryset: QuerySet[Operation]) -> None:
        """Stop running operations; what they have changed stays changed."""
        found = list(queryset)
        allowed = [operation for operation in found if _may_stop(request, operation)]
        stopped, _ended = self.act_on_each(allowed, lambda operation: self._stop(request, operation))
        if stopped:
            self.message_user(
                request,
                ngettext("Stopped %(n)d operation.", "Stopped %(n)d operations.", stopped) % {"n": stopped},
                messages.SUCCESS,
            )
        if stopped < len(found):
            text = _("Skipped %(n)d (ended already, or you may not stop them).")
            self.message_user(request, text % {"n": len(found) - stopped}, messages.WARNING)

    @action_page("stop", "stop")
    def stop_view(self, request: HttpRequest, operation: Operation, _reason: str) -> str:
        if not _may_stop(request, operation):
            raise PermissionDenied
        self._stop(request, operation)
        return _("The operation is stopped; what it has changed stays changed.")

    def _stop(self, request: HttpRequest, operation: Operation) -> None:
        ended = cancel_operation(operation.pk, by=request.user.get_username())
        self.audit(request, [operation], "Stopped.", action="stop", after={"changed": ended.changed})

    def became(self, request: HttpRequest, operation: Operation) -> dict[str, Any]:
        """Return what became of the first tasks that an operation changed: numbers by state, and each."""
        if not request.user.has_perm("queue_app.view_task"):
            return {}
        ids = changed_tasks(operation)
        tasks = {str(task.pk): task for task in Task.objects.filter(pk__in=ids)}
        counts = Counter(task.status for task in tasks.values())
        states = [(status, f"{count:,} {word(status)}") for status, count in counts.most_common()]
        if gone := len(ids) - len(tasks):
            states.append(("deleted", f"{gone:,} {word('deleted')}"))
        listed = [tasks[str(task_id)] for task_id in ids if str(task_id) in tasks][:MAX_LISTED]
        return {"became": with_workers(request, listed), "states": states, "followed": len(ids)}

    def page_context(self, request: HttpRequest, found: Operation) -> dict[str, Any]:
        running = found.state == OperationState.RUNNING
        self.annotate_rows(request, [found])
        return self.became(request, found) | {
            "title": html.unescape(strip_tags(operation_sentence(found))),
            "subtitle": "",
            "is_running": running,
            "may_stop": running and _may_stop(request, found),
        }


def _may_stop(request: HttpRequest, operation: Operation) -> bool:
    return request.user.has_perm(PERMISSIONS[OperationKind(operation.kind)])
