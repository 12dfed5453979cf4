"""The pages of dead letters."""

from collections.abc import Iterable
from typing import Any, cast

from django.contrib import admin
from django.contrib.admin.utils import unquote
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.text import Truncator
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy as _lazy
from django.utils.translation import ngettext

from queue_app.admin.causes import cause_text
from queue_app.admin.columns import column, json_block, preformatted, two_lines
from queue_app.admin.dead_letter_actions import DeadLetterActionsMixin
from queue_app.admin.filters import LETTER_SEARCH_HELP, LetterBandFilter, QueueFilter, choice_filter, search
from queue_app.admin.forms import DeadLetterActionForm
from queue_app.admin.mixins import ReadOnlyAdmin
from queue_app.admin.saved_views import SavedViewsMixin
from queue_app.core.redaction import redact
from queue_app.dashboard import labels
from queue_app.dashboard.translation import word
from queue_app.displayed_payload import displayed_payload
from queue_app.models import DeadLetter, Task, TaskPayload
from queue_app.models.dead_letter import STATE_NAMES, DeadLetterQuerySet

StateFilter = choice_filter(
    _lazy("state"), "state", lambda: STATE_NAMES, lambda rows, value: cast("DeadLetterQuerySet", rows).in_state(value)
)


class DeadLetterAdmin(SavedViewsMixin[DeadLetter], DeadLetterActionsMixin, ReadOnlyAdmin[DeadLetter]):
    """Tasks whose retries are exhausted, and whether staff replayed or discarded them."""

    action_form = DeadLetterActionForm
    empty_text = _lazy("No dead letter. Tasks come here when their retries are exhausted.")
    actions = ("replay_selected", "discard_selected")
    exact_lookups = ("operation_id", "fingerprint")
    fields = (
        "task", "task_type", "queue", "band", "user", "reason", "attempts", "masked_class", "masked_message",
        "masked_args", "masked_parameters", "died", "expires", "fate", "parameters_edited",
    )  # fmt: skip
    list_display = ("failure", "type", "where", "why", "when", "fate")
    list_filter = (StateFilter, LetterBandFilter, QueueFilter)
    ordering = ("-expires_at", "-id")  # uses the index of the purge; they expire in the order in which they died
    search_fields = ("task_id", "task_type", "user")  # shows the box; get_search_results searches
    search_help_text = LETTER_SEARCH_HELP

    band = column(_lazy("priority"), lambda letter: labels.band_label(letter.priority))
    masked_class = column(_lazy("exception"), lambda letter: redact(letter.exception_class, _displayed(letter)[0]))
    masked_message = column(
        _lazy("message"), lambda letter: preformatted(redact(letter.message, _displayed(letter)[0]))
    )
    masked_args = column(_lazy("positional arguments"), lambda letter: json_block(_displayed(letter)[1]))
    masked_parameters = column(_lazy("parameters"), lambda letter: json_block(_displayed(letter)[2]))
    died = column(_lazy("died"), lambda letter: labels.ago(letter.died_at, timezone.now()))
    expires = column(_lazy("expires"), lambda letter: labels.ago(letter.expires_at, timezone.now()))

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Go to the page of the task, which shows the dead letter. Only one whose task was purged has its own page."""
        letter = self.get_object(request, unquote(object_id))
        if letter is None or request.method == "POST" or not request.user.has_perm("queue_app.view_task"):
            return super().change_view(request, object_id, form_url, extra_context)
        if not (self.has_view_permission(request, letter) and Task.objects.filter(pk=letter.task_id).exists()):
            return super().change_view(request, object_id, form_url, extra_context)
        which = "" if letter.replayed_at is None else f"?letter={letter.pk}"  # a task has one that is not replayed
        return HttpResponseRedirect(self.url_of_model("task", "change", letter.task_id) + which)

    def condition_text(self, request: HttpRequest, name: str, value: str) -> str:
        return cause_text(request, value) if name == "fingerprint" else super().condition_text(request, name, value)

    def annotate_rows(self, request: HttpRequest, rows: Iterable[Any]) -> None:
        """Read the payloads of the page's tasks, to hide their secrets in the messages."""
        may_view = self.may_view_payload(request)
        payloads = TaskPayload.objects.in_bulk([letter.task_id for letter in rows]) if may_view else {}
        for letter in rows:
            letter.secrets = displayed_payload(letter.task_type, payloads.get(letter.task_id))[0]
            if not may_view:
                letter.message = letter.exception_class = ""

    def get_fields(self, request: HttpRequest, obj: DeadLetter | None = None) -> Any:
        """Leave out what the user may not read."""
        may_view = self.may_view_payload(request)
        return [name for name in self.fields if may_view or not name.startswith("masked_")]

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[DeadLetter], search_term: str
    ) -> tuple[QuerySet[DeadLetter], bool]:
        may_view = self.may_view_payload(request)
        return search(queryset, search_term, id_field="task_id", may_view_payload=may_view), False

    @admin.display(description=_lazy("exception, message"))
    def failure(self, letter: DeadLetter) -> SafeString:
        """Return the class of the last error, and the beginning of its message without secrets."""
        name = redact(letter.exception_class, letter.secrets).rpartition(".")[2]  # type: ignore[attr-defined]
        message = Truncator(" ".join(redact(letter.message, letter.secrets).split()))  # type: ignore[attr-defined]
        text = name or word(letter.reason)
        return format_html('{}<br><small class="tq-below tq-message">{}</small>', text, message.chars(120))

    @admin.display(description=_lazy("queue, user"))
    def where(self, letter: DeadLetter) -> SafeString:
        return self.place_of(letter)

    @admin.display(description=_lazy("task"))
    def type(self, letter: DeadLetter) -> SafeString:
        return self._task_link(letter, labels.type_label(letter.task_type))

    @admin.display(description=_lazy("task"))
    def task(self, letter: DeadLetter) -> SafeString:
        return self._task_link(letter, letter.task_id)

    def _task_link(self, letter: DeadLetter, text: Any) -> SafeString:
        return format_html('<a href="{}">{}</a>', self.url_of_model("task", "change", letter.task_id), text)

    @admin.display(description=_lazy("reason"))
    def why(self, letter: DeadLetter) -> SafeString:
        attempts = ngettext("%(count)d attempt", "%(count)d attempts", letter.attempts) % {"count": letter.attempts}
        return two_lines(word(letter.reason), attempts)

    @admin.display(description=_lazy("died, expires"))
    def when(self, letter: DeadLetter) -> SafeString:
        return two_lines(self.died(letter), self.expires(letter))

    @admin.display(description=_lazy("state"))
    def fate(self, letter: DeadLetter) -> SafeString:
        label = format_html('<span class="tq-label tq-letter-{}">{}</span>', letter.state, word(letter.state))
        at = letter.replayed_at or letter.discarded_at
        if at is None:
            return label
        by = letter.replayed_by if letter.replayed_at else letter.discarded_by
        who = _("by %(name)s") % {"name": by} if by else _("by a program")
        reason = f": {letter.discard_reason}" if letter.discard_reason else ""
        return two_lines(label, format_html("{} {}{}", who, labels.ago(at, timezone.now()), reason))


def _displayed(letter: DeadLetter) -> Any:
    return displayed_payload(letter.task_type, TaskPayload.objects.filter(pk=letter.task_id).first())
