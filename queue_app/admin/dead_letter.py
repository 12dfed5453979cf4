"""Dead letters: found, read, replayed and discarded; and the snapshots of queues, to read."""

from __future__ import annotations

from typing import Any, cast

from django.contrib import admin
from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.admin.views.main import ChangeList
from django.db.models import QuerySet
from django.http import HttpRequest
from django.urls import reverse
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.text import Truncator
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy as _lazy
from django.utils.translation import ngettext

from queue_app.admin.dead_letter_actions import DeadLetterActionsMixin
from queue_app.admin.dead_letter_form import DeadLetterActionForm
from queue_app.admin.dead_letter_groups import DeadLetterGroupsMixin
from queue_app.admin.mixins import CappedPaginator, ReadOnlyAdmin, time_of
from queue_app.admin.saved_views import SavedViewsMixin
from queue_app.admin.task_detail import displayed_payload, pretty
from queue_app.admin.task_list import LETTER_SEARCH_HELP, BandFilter, QueueFilter, search
from queue_app.core.redaction import redact
from queue_app.dashboard import labels
from queue_app.models import DeadLetter, QueueStats, TaskPayload
from queue_app.models.dead_letter import STATE_NAMES, DeadLetterQuerySet


class StateFilter(admin.SimpleListFilter):
    """By what became of it."""

    title = _lazy("state")
    parameter_name = "state"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        """Return the states; open ones can be replayed."""
        return [(name, name) for name in STATE_NAMES]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """Keep the dead letters in the chosen state."""
        if not self.value():
            return queryset
        try:
            letters: QuerySet[Any] = cast("DeadLetterQuerySet", queryset).in_state(str(self.value()))
        except KeyError as error:
            raise IncorrectLookupParameters from error
        return letters


class DeadLetterChangeList(ChangeList):
    """A page of dead letters with what must be hidden in their messages, read in one query for the whole page."""

    def get_results(self, request: HttpRequest) -> None:
        """Read the page, then the payloads of its tasks."""
        super().get_results(request)
        letters: list[DeadLetter] = list(self.result_list)
        may_view = request.user.has_perm("queue_app.view_payload")
        payloads = TaskPayload.objects.in_bulk([letter.task_id for letter in letters]) if may_view else {}
        for letter in letters:
            letter.secrets = displayed_payload(letter.task_type, payloads.get(letter.task_id))[0]  # type: ignore[attr-defined]
            if not may_view:
                letter.message = ""
        self.result_list = letters


@admin.register(DeadLetter)
class DeadLetterAdmin(
    SavedViewsMixin[DeadLetter], DeadLetterGroupsMixin, DeadLetterActionsMixin, ReadOnlyAdmin[DeadLetter]
):
    """The tasks that were given up, and what became of that."""

    action_form = DeadLetterActionForm
    empty_text = _lazy("Nothing was given up. Tasks come here when their retries are exhausted.")
    actions = ("replay_selected", "discard_selected")
    exact_lookups = ("operation_id", "fingerprint")
    fields = (
        "task", "task_type", "queue", "band", "user", "reason", "attempts", "exception_class", "masked_message",
        "masked_args", "masked_parameters", "died", "expires", "fate", "parameters_edited",
    )  # fmt: skip
    list_display = ("failure", "type", "where", "why", "when", "fate")
    list_filter = (StateFilter, BandFilter, QueueFilter)
    list_per_page = 50
    ordering = ("-expires_at", "-id")  # served by the index of the purge; they expire in the order in which they died
    paginator = CappedPaginator
    search_fields = ("task_id", "task_type", "user")  # shows the box; get_search_results decides
    search_help_text = LETTER_SEARCH_HELP
    show_full_result_count = False
    sortable_by = ()

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[DeadLetterChangeList]:
        """Return the list that knows what to hide."""
        return DeadLetterChangeList

    def get_fields(self, request: HttpRequest, obj: DeadLetter | None = None) -> Any:
        """Leave out what the user may not read."""
        hidden = {"masked_message", "masked_args", "masked_parameters"}
        if request.user.has_perm("queue_app.view_payload"):
            return self.fields
        return tuple(name for name in self.fields if name not in hidden)

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[DeadLetter], search_term: str
    ) -> tuple[QuerySet[DeadLetter], bool]:
        """Search by id of the task, beginning of its type, or user."""
        return search(queryset, search_term, id_field="task_id"), False

    @admin.display(description=_lazy("exception, message"))
    def failure(self, letter: DeadLetter) -> SafeString:
        """Return the last error: its class, and the beginning of its text without secrets."""
        name = letter.exception_class.rpartition(".")[2] or letter.reason
        message = Truncator(" ".join(redact(letter.message, letter.secrets).split()))  # type: ignore[attr-defined]
        return format_html('{}<small class="tq-below tq-message">{}</small>', name, message.chars(120))

    @admin.display(description=_lazy("task"))
    def type(self, letter: DeadLetter) -> SafeString:
        """Return the function's name with its module beneath, as a link to the task."""
        return format_html('<a href="{}">{}</a>', self._task_url(letter), labels.type_label(letter.task_type))

    @admin.display(description=_lazy("queue, user"))
    def where(self, letter: DeadLetter) -> SafeString | str:
        """Return the queue, and on whose behalf it ran."""
        if not letter.user:
            return letter.queue
        return format_html('{}<small class="tq-below">{}</small>', letter.queue, letter.user)

    @admin.display(description=_lazy("reason"))
    def why(self, letter: DeadLetter) -> SafeString:
        """Return why it was given up, and after how many attempts."""
        reason = letter.reason.replace("_", " ")
        attempts = ngettext("%(count)d attempt", "%(count)d attempts", letter.attempts) % {"count": letter.attempts}
        return format_html('{}<small class="tq-below">{}</small>', reason, attempts)

    @admin.display(description=_lazy("task"))
    def task(self, letter: DeadLetter) -> SafeString:
        """Return a link to the task, whose page has the tracebacks."""
        return format_html('<a href="{}">{}</a>', self._task_url(letter), letter.task_id)

    @admin.display(description=_lazy("priority"))
    def band(self, letter: DeadLetter) -> SafeString:
        """Return the band as a label."""
        return labels.band_label(letter.priority)

    @admin.display(description=_lazy("message"))
    def masked_message(self, letter: DeadLetter) -> SafeString:
        """Return the last error's text without secrets."""
        secrets = displayed_payload(letter.task_type, _payload(letter))[0]
        return format_html('<pre class="tq-pre">{}</pre>', redact(letter.message, secrets))

    @admin.display(description=_lazy("positional arguments"))
    def masked_args(self, letter: DeadLetter) -> SafeString | str:
        """Return the arguments without secrets."""
        args = displayed_payload(letter.task_type, _payload(letter))[1]
        return format_html('<pre class="tq-pre">{}</pre>', pretty(args)) if args else _("none")

    @admin.display(description=_lazy("parameters"))
    def masked_parameters(self, letter: DeadLetter) -> SafeString | str:
        """Return the parameters without secrets."""
        parameters = displayed_payload(letter.task_type, _payload(letter))[2]
        return format_html('<pre class="tq-pre">{}</pre>', pretty(parameters)) if parameters else _("none")

    @admin.display(description=_lazy("died, expires"))
    def when(self, letter: DeadLetter) -> SafeString:
        """Return when it was given up, and when the record is deleted."""
        return format_html('{}<small class="tq-below">{}</small>', self.died(letter), self.expires(letter))

    @admin.display(description=_lazy("died"))
    def died(self, letter: DeadLetter) -> SafeString:
        """Return when it was given up."""
        return labels.ago(letter.died_at, timezone.now())

    @admin.display(description=_lazy("expires"))
    def expires(self, letter: DeadLetter) -> SafeString:
        """Return when the record is deleted."""
        return labels.ago(letter.expires_at, timezone.now())

    @admin.display(description=_lazy("state"))
    def fate(self, letter: DeadLetter) -> SafeString:
        """Return whether it is open, or who replayed or discarded it and when."""
        label = format_html('<span class="tq-label tq-letter-{}">{}</span>', letter.state, letter.state)
        at = letter.replayed_at or letter.discarded_at
        if at is None:
            return label
        by = letter.replayed_by if letter.replayed_at else letter.discarded_by
        reason = f": {letter.discard_reason}" if letter.discard_reason else ""
        who = _("by %(name)s") % {"name": by} if by else _("by a program")
        ago = labels.ago(at, timezone.now())
        return format_html('{}<small class="tq-below">{} {}{}</small>', label, who, ago, reason)

    def _task_url(self, letter: DeadLetter) -> str:
        return reverse("admin:queue_app_task_change", args=[letter.task_id], current_app=self.admin_site.name)


def _payload(letter: DeadLetter) -> TaskPayload | None:
    return TaskPayload.objects.filter(pk=letter.task_id).first()


@admin.register(QueueStats)
class QueueStatsAdmin(ReadOnlyAdmin[QueueStats]):
    """The snapshots of the queues, newest first."""

    list_display = ("queue", "taken", "waiting", "scheduled", "active", "oldest", "enqueued", "completed", "failed")
    empty_text = _lazy("No snapshot yet: maintenance takes one of each queue each minute.")
    fields = ("queue", "taken", "waiting", "scheduled", "active", "oldest", "enqueued", "completed", "failed")
    list_filter = (QueueFilter,)
    list_per_page = 50
    ordering = ("-id",)
    paginator = CappedPaginator
    show_full_result_count = False
    sortable_by = ()

    taken = time_of("taken_at", _lazy("taken"))

    @admin.display(description=_lazy("queued"))
    def waiting(self, stats: QueueStats) -> str:
        """Return the queued tasks of each band in which something waited."""
        return ", ".join(f"{band} {count}" for band, count in stats.depth.items() if count) or "0"

    @admin.display(description=_lazy("oldest waited"))
    def oldest(self, stats: QueueStats) -> str:
        """Return the age of the task that had waited longest."""
        return "-" if stats.oldest_seconds is None else labels.duration(stats.oldest_seconds)
