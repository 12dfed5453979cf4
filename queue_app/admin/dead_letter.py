"""The pages of dead letters: their causes, replay, edited parameters, discard."""

import uuid
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final, cast

from django.contrib import admin, messages
from django.contrib.admin.utils import unquote
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.text import Truncator
from django.utils.translation import gettext as _, gettext_lazy as _lazy, ngettext, ngettext_lazy

from queue_app.admin import forms
from queue_app.admin.bulk import PATIENCE_SECONDS, OperationsMixin
from queue_app.admin.filters import SEARCH_HELP, LetterBandFilter, QueueFilter, choice_filter, search_letters
from queue_app.admin.mixins import COUNT_LIMIT, ReadOnlyAdmin, action_page, object_page, page
from queue_app.admin.saved_views import SavedViewsMixin
from queue_app.admin.task import EditParametersMixin
from queue_app.admin.task_detail import in_short
from queue_app.core.redaction import redact
from queue_app.dashboard import labels
from queue_app.dashboard.sentences import filter_parts
from queue_app.encryption.displayed import displayed_payload
from queue_app.models import DeadLetter, Task, TaskPayload
from queue_app.models.dead_letter import OPEN_NAME, STATE_NAMES, DeadLetterQuerySet
from queue_app.models.operation import OperationKind, OperationState
from queue_app.services.control.audit import ADMIN, record
from queue_app.services.lifecycle.actions import discard, discard_many, discard_open, replay
from queue_app.services.operations.request import SAMPLE, Action, ReplayOptions
from queue_app.services.operations.run import advance_for
from queue_app.services.read.dead_letters import CauseGroup, DeadLetterFilter, groups, preview
from queue_app.sql.database import atomic

# The causes of open dead letters on the pages of task types and queues.

MAX_CAUSES: Final = 10


def causes_of(request: HttpRequest, letters: DeadLetterQuerySet | Any) -> list[tuple[CauseGroup, str, str]]:
    """Return the causes of the open ones among ``letters``, each with its class and message without secrets."""
    if not request.user.has_perm("queue_app.view_deadletter"):
        return []
    return named(request, groups(letters)[:MAX_CAUSES])


def named(request: HttpRequest, found: list[CauseGroup]) -> list[tuple[CauseGroup, str, str]]:
    """Return causes, each with its class and message: without secrets, and only for those who may read them."""
    may_view = request.user.has_perm("queue_app.view_payload")
    payloads = TaskPayload.objects.in_bulk([group.latest.task_id for group in found]) if may_view else {}
    return [(group, *_texts(group.latest, payloads, may_view=may_view)) for group in found]


def cause_texts(request: HttpRequest, fingerprints: Iterable[str]) -> dict[str, str]:
    """Return the causes of dead letters, each as one line, for those who may see them."""
    wanted = set(fingerprints)
    if not wanted or not request.user.has_perm("queue_app.view_deadletter"):
        return dict.fromkeys(wanted, _("one cause"))
    letters = DeadLetter.objects.filter(fingerprint__in=wanted)
    latest = list(letters.order_by("fingerprint", "-died_at").distinct("fingerprint"))
    may_view = request.user.has_perm("queue_app.view_payload")
    payloads = TaskPayload.objects.in_bulk([letter.task_id for letter in latest]) if may_view else {}
    found = dict.fromkeys(wanted, _("a cause of the past"))
    for letter in latest:
        name, message = _texts(letter, payloads, may_view=may_view)
        shown = f"{labels.class_name(name)}: {message}" if message else f"{name}, {letter.task_type}"
        found[letter.fingerprint] = shown
    return found


def _texts(letter: DeadLetter, payloads: Mapping[Any, TaskPayload], *, may_view: bool) -> tuple[str, str]:
    if not may_view:
        return labels.word(letter.reason), ""
    secrets = displayed_payload(letter.task_type, payloads.get(letter.task_id))[0]
    name, message = (redact(text, secrets)[:200] for text in (letter.exception_class, letter.message))
    return name or labels.word(letter.reason), message


# Replay and discard dead letters: one, a selection, or all that match a filter.

#: A larger selection continues in the background: its first replays run alone, and the rest waits for their success.
AT_ONCE = 100
REPLAY = Action(kind=OperationKind.REPLAY)
#: What an action did, with the number of dead letters.
REPLAYED: Any = ngettext_lazy("Replayed %(count)d dead letter.", "Replayed %(count)d dead letters.", "count")
DISCARDED: Any = ngettext_lazy("Discarded %(count)d dead letter.", "Discarded %(count)d dead letters.", "count")
_WILL_REPLAY: Any = ngettext_lazy(
    "%(shown)s dead letter will be replayed: its task is queued again.",
    "%(shown)s dead letters will be replayed: their tasks are queued again.", "n",
)  # fmt: skip
_WILL_DISCARD: Any = ngettext_lazy(
    "%(shown)s dead letter will be discarded.", "%(shown)s dead letters will be discarded.", "n"
)
_LEFT_CLOSED: Any = ngettext_lazy(
    "%(shown)s is left alone: it was replayed or discarded before.",
    "%(shown)s are left alone: they were replayed or discarded before.", "n",
)  # fmt: skip
_NOT_AGAIN: Any = _lazy("A discarded dead letter cannot be replayed: its task stays failed, and is purged in time.")
#: Fields of a filter in the form.
_FIELDS = ("fingerprint", "queue", "task_type", "exception_class", "user", "text")


class DeadLetterActionsMixin(EditParametersMixin[DeadLetter], OperationsMixin[DeadLetter]):
    """Actions that call the services; staff never edit the rows themselves."""

    change_form_template = "admin/queue_app/deadletter/change_form.html"
    has_replay_permission = forms.permission("replay_deadletter")
    has_discard_permission = forms.permission("discard_deadletter")

    # -- on a selection -------------------------------------------------------------

    @admin.action(description=_lazy("Replay…"), permissions=["replay"])
    def replay_selected(self, request: HttpRequest, queryset: QuerySet[DeadLetter]) -> HttpResponse | None:
        """Queue the tasks again: a small selection at once; a large one, or one with a rate, in the background."""
        form = self.posted_form(request, forms.OperationForm)
        if not form.is_valid():
            return self._ask(request, form, queryset, _("Replay"), _WILL_REPLAY)
        selected, options = self._selected(request, queryset), form.options_of(ReplayOptions)
        if len(selected) <= AT_ONCE and options == ReplayOptions(order=options.order):
            options = replace(options, stop_after_failures=0)
        if selected:
            self._start_replay(request, DeadLetterFilter(ids=list(selected)), options, form.cleaned_data["reason"])
        return None

    @admin.action(description=_lazy("Discard…"), permissions=["discard"])
    def discard_selected(self, request: HttpRequest, queryset: QuerySet[DeadLetter]) -> HttpResponse | None:
        form = self.posted_form(request, forms.ConfirmForm)
        if not form.is_valid():
            return self._ask(request, form, queryset, _("Discard"), _WILL_DISCARD, _NOT_AGAIN, is_final=True)
        selected, reason = self._selected(request, queryset), form.cleaned_data["reason"]
        if selected:
            with atomic():
                done = discard_open(list(selected), by=request.user.get_username(), reason=reason)
                self._audit_many(request, [selected[letter_id] for letter_id in done], "discard", reason)
            self.message_user(request, DISCARDED % {"count": len(done)}, messages.SUCCESS)
        return None

    def _ask(
        self, request: HttpRequest, form: forms.ConfirmForm, queryset: QuerySet[DeadLetter], verb: str, will: Any,
        *more: Any, **context: Any,
    ) -> HttpResponse:  # fmt: skip
        found = cast("DeadLetterQuerySet", queryset)
        done, all_of_them = (rows.order_by()[: COUNT_LIMIT + 1].count() for rows in (found.open(), found))
        lines = [forms.with_number(will, done), *more]
        if done < all_of_them:
            lines.append(forms.with_number(_LEFT_CLOSED, all_of_them - done))
        sample = [
            (self.url_of("change", letter.pk), letter.task_type, letter.queue)
            for letter in found.open().order_by("died_at")[:SAMPLE]
        ]
        return self.ask_for_many(request, form, verb, lines, done=done, sample=sample, **context)

    def _selected(self, request: HttpRequest, queryset: QuerySet[DeadLetter]) -> dict[uuid.UUID, DeadLetter]:
        """Return the selection, oldest first; nothing, with a message, if it is too large."""
        selected = {letter.id: letter for letter in queryset.order_by("died_at")[: COUNT_LIMIT + 1]}
        if len(selected) > COUNT_LIMIT:
            self.refuse(
                request, _("More than %(n)s dead letters match. Narrow the list first.") % {"n": f"{COUNT_LIMIT:,}"}
            )
            return {}
        return selected

    def _start_replay(
        self, request: HttpRequest, wanted: DeadLetterFilter, options: ReplayOptions, reason: str
    ) -> None:
        operation = self.start(request, REPLAY, wanted, reason, options)
        if not options.stop_after_failures:
            operation = advance_for(operation.pk, PATIENCE_SECONDS)
        if operation.state == OperationState.DONE:
            self.tell_of(request, operation, REPLAYED % {"count": operation.changed})
            return
        text = ngettext("Replaying %(n)d dead letter:", "Replaying %(n)d dead letters:", operation.total)
        self.tell_of(request, operation, text % {"n": operation.total}, _("see the progress"))

    def _audit_many(self, request: HttpRequest, letters: list[DeadLetter], action: str, reason: str) -> None:
        done = "Replayed" if action == "replay" else "Discarded"
        self.audit(
            request, letters, f"{done}.", action=action, before={"state": OPEN_NAME}, after={"state": done.lower()},
            reason=reason,
        )  # fmt: skip

    # -- on one ---------------------------------------------------------------------

    @action_page("replay", "replay")
    def replay_view(self, request: HttpRequest, letter: DeadLetter, reason: str) -> str:
        replay(letter.pk, by=request.user.get_username())
        self._audit_many(request, [letter], "replay", reason)
        return _("The task is queued again.")

    def _of_discard(self, _request: HttpRequest, letter: DeadLetter) -> list[Any]:
        in_workflow = Task.objects.filter(pk=letter.task_id, workflow_id__isnull=False).exists()
        more = [_("It belongs to a workflow: tasks that wait for it do not run.")] if in_workflow else []
        return [_NOT_AGAIN, *more] if letter.state == OPEN_NAME else []

    @action_page("discard", "discard", label=_lazy("Discard"), consequences=_of_discard)
    def discard_view(self, request: HttpRequest, letter: DeadLetter, reason: str) -> str:
        discard(letter.pk, by=request.user.get_username(), reason=reason)
        self._audit_many(request, [letter], "discard", reason)
        return _("The dead letter is discarded.")

    def has_edit_permission(self, request: HttpRequest) -> bool:
        """Return whether the user may see parameters, and replay tasks with others."""
        return self.may_view_payload(request) and self.has_replay_permission(request)

    @object_page("edit", "edit")
    def edit_view(self, request: HttpRequest, letter: DeadLetter) -> HttpResponse:

        def act(edited: dict[str, Any], reason: str) -> tuple[str, uuid.UUID]:
            replay(letter.pk, by=request.user.get_username(), **edited)
            self.audit(
                request, [letter], "Replayed with parameters edited.", action="replay_edited", reason=reason,
                before={"state": letter.state}, after={"state": "replayed", "parameters": "edited"},
            )  # fmt: skip
            return _("The task is queued again, with these arguments."), letter.pk

        return self.edit_parameters(
            request, letter, letter.task_id, act, title=_("Replay with edited arguments"),
            submit=_("Replay"),
            explanation=_("The task will run again with these arguments. Its errors and attempts are kept."),
        )  # fmt: skip

    def page_context(self, request: HttpRequest, found: DeadLetter) -> dict[str, Any]:
        may_replay = found.state == OPEN_NAME and self.has_replay_permission(request)
        return {
            "may_replay": may_replay,
            "may_edit": may_replay and self.has_edit_permission(request),
            "may_discard": found.state == OPEN_NAME and self.has_discard_permission(request),
        }

    # -- by cause, or by filter -------------------------------------------------------

    @page("causes/", "groups", permission="view")
    def groups_view(self, request: HttpRequest) -> HttpResponse:
        rows = named(request, groups())
        may_act = self.has_replay_permission(request) or self.has_discard_permission(request)
        return self.own_page(request, "deadletter/groups.html", _("Dead letters by cause"), rows=rows, may_act=may_act)

    @page("matching/", "matching", permission="view")
    def matching_view(self, request: HttpRequest) -> HttpResponse:
        """Show what a filter matches now; replay or discard all of it once the user confirms."""
        data = request.POST if request.method == "POST" else request.GET
        values = {name: data.get(name, "").strip() for name in _FIELDS}
        of_cause = values["fingerprint"] and "\x00" not in values["fingerprint"]
        if (values["text"] or values["exception_class"]) and not self.may_view_payload(request):
            raise PermissionDenied  # otherwise staff could guess messages word by word
        wanted = DeadLetterFilter.of(values)
        if "\x00" in "".join(values.values()):
            self.message_user(request, _("The filter contains an invalid value."), messages.ERROR)
            return HttpResponseRedirect(self.url_of("changelist"))
        act = request.POST.get("act", "")
        form = forms.OperationForm(request.POST if act else None, initial=data.dict())
        if act in {"replay", "discard"} and self._act_on_all(request, act, wanted, form):
            return HttpResponseRedirect(self.url_of("groups"))
        newest = data.get("order") == "newest"
        dry_run = preview(wanted, newest=newest)
        sample = list(DeadLetter.objects.filter(pk__in=dry_run.sample).order_by("-died_at" if newest else "died_at"))
        self.annotate_rows(request, sample)
        for letter in sample:
            letter.shown = redact(letter.message, letter.secrets)
        return self.own_page(
            request,
            "deadletter/matching.html",
            _("Replay or discard all that match"),
            values=values,
            chosen=list(filter_parts({name: value for name, value in values.items() if name != "fingerprint"})),
            cause=cause_texts(request, [values["fingerprint"]])[values["fingerprint"]] if of_cause else "",
            count=dry_run.count,
            sample=sample,
            newest=newest,
            may_replay=self.has_replay_permission(request),
            may_discard=self.has_discard_permission(request),
            form=form,
        )

    def _act_on_all(self, request: HttpRequest, act: str, wanted: DeadLetterFilter, form: forms.OperationForm) -> bool:
        """Replay or discard what a filter matches; return false if the form is invalid."""
        if not (self.has_replay_permission(request) if act == "replay" else self.has_discard_permission(request)):
            raise PermissionDenied
        if act == "discard" and (form.data.get("order") == "newest" or form.data.get("rate")):
            form.add_error(None, _("Discarding takes the oldest first, all at once."))
        if not form.is_valid():
            return False
        reason, options = form.cleaned_data["reason"], form.options_of(ReplayOptions)
        if act == "replay":
            self._start_replay(request, wanted, options, reason)
            return True
        by = request.user.get_username()
        with atomic():
            sample = list(DeadLetter.objects.filter(pk__in=preview(wanted).sample[:1]))
            count = discard_many(wanted, by=by, reason=reason, limit=options.limit)
            logged = f"Discarded {forms.counted(count, 'dead letter')} by filter {wanted.as_json()}."
            if sample:
                self.log_action_of(request, sample, logged, reason)
            record(
                "deadletter.discard_many", "deadletter", by=by, via=ADMIN, count=count, reason=reason,
                after={"filter": wanted.as_json()},
            )  # fmt: skip
        self.message_user(request, DISCARDED % {"count": count}, messages.SUCCESS)
        return True


StateFilter = choice_filter(
    _lazy("state"), "state", lambda: STATE_NAMES, lambda rows, value: cast("DeadLetterQuerySet", rows).in_state(value)
)


class DeadLetterAdmin(SavedViewsMixin[DeadLetter], DeadLetterActionsMixin, ReadOnlyAdmin[DeadLetter]):
    """Tasks whose retries are exhausted, and whether staff replayed or discarded them."""

    empty_text = _lazy("No dead letter. Tasks come here when their retries are exhausted.")
    gone_text = _lazy("There is no dead letter %(id)s, or its task was purged.")
    actions = ("replay_selected", "discard_selected")
    exact_lookups = ("operation_id", "fingerprint")
    fields = (
        "task", "task_type", "queue", "band", "user", "reason", "attempts", "masked_class", "masked_message",
        "masked_args", "masked_parameters", "died", "expires", "fate", "parameters_edited",
    )  # fmt: skip
    list_display = ("failure", "type", "where", "why", "when", "fate")
    list_filter = (StateFilter, LetterBandFilter, QueueFilter)
    ordering = ("-expires_at", "-id")  # uses the index of the purge; they expire in the order in which they died
    search_fields = ("task_id", "task_type", "user")  # shows the box; ``search`` searches
    search_help_text = SEARCH_HELP
    search = staticmethod(search_letters)

    band = forms.column(_lazy("priority"), lambda letter: labels.band_label(letter.priority))
    masked_class = forms.column(
        _lazy("exception"), lambda letter: redact(letter.exception_class, _displayed(letter)[0])
    )
    masked_message = forms.column(
        _lazy("message"), lambda letter: forms.preformatted(redact(letter.message, _displayed(letter)[0]))
    )
    masked_args = forms.column(_lazy("positional arguments"), lambda letter: forms.json_block(_displayed(letter)[1]))
    masked_parameters = forms.column(_lazy("arguments"), lambda letter: forms.json_block(_displayed(letter)[2]))
    died = forms.column(_lazy("died"), lambda letter: labels.ago(letter.died_at, timezone.now()))
    expires = forms.column(_lazy("expires"), lambda letter: labels.ago(letter.expires_at, timezone.now()))

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
        if name == "fingerprint":
            return cause_texts(request, [value])[value]
        return super().condition_text(request, name, value)

    def annotate_rows(self, request: HttpRequest, rows: Iterable[Any]) -> None:
        """Read the payloads of the page's tasks, to hide their secrets in the messages."""
        may_view = self.may_view_payload(request)
        payloads = TaskPayload.objects.in_bulk([letter.task_id for letter in rows]) if may_view else {}
        for letter in rows:
            letter.secrets = displayed_payload(letter.task_type, payloads.get(letter.task_id))[0]
            letter.arguments = in_short(letter.task_type, payloads.get(letter.task_id))
            if not may_view:
                letter.message = letter.exception_class = ""

    def get_fields(self, request: HttpRequest, obj: DeadLetter | None = None) -> Any:
        """Leave out what the user may not read."""
        may_view = self.may_view_payload(request)
        return [name for name in self.fields if may_view or not name.startswith("masked_")]

    @admin.display(description=_lazy("exception, message"))
    def failure(self, letter: DeadLetter) -> SafeString:
        """Return the class of the last error, and the beginning of its message without secrets."""
        name = redact(letter.exception_class, letter.secrets).rpartition(".")[2]  # type: ignore[attr-defined]
        message = Truncator(" ".join(redact(letter.message, letter.secrets).split()))  # type: ignore[attr-defined]
        text = name or labels.word(letter.reason)
        return format_html('{}<br><small class="tq-below tq-message">{}</small>', text, message.chars(120))

    @admin.display(description=_lazy("queue, user"))
    def where(self, letter: DeadLetter) -> SafeString:
        return self.place_of(letter)

    @admin.display(description=_lazy("task, arguments"))
    def type(self, letter: Any) -> SafeString:
        return labels.type_label(letter.task_type, letter.arguments, self._task_url(letter))

    @admin.display(description=_lazy("task"))
    def task(self, letter: DeadLetter) -> SafeString:
        return format_html('<a href="{}">{}</a>', self._task_url(letter), letter.task_id)

    def _task_url(self, letter: DeadLetter) -> str:
        return self.url_of_model("task", "change", letter.task_id)

    @admin.display(description=_lazy("reason"))
    def why(self, letter: DeadLetter) -> SafeString:
        return forms.two_lines(labels.word(letter.reason), _("attempt %(n)d") % {"n": letter.attempts})

    @admin.display(description=_lazy("died, expires"))
    def when(self, letter: DeadLetter) -> SafeString:
        return forms.two_lines(self.died(letter), self.expires(letter))

    @admin.display(description=_lazy("state"))
    def fate(self, letter: DeadLetter) -> SafeString:
        label = format_html('<span class="tq-label tq-letter-{}">{}</span>', letter.state, labels.word(letter.state))
        at = letter.replayed_at or letter.discarded_at
        if at is None:
            return label
        by = letter.replayed_by if letter.replayed_at else letter.discarded_by
        who = _("by %(name)s") % {"name": by} if by else _("by a program")
        reason = f": {letter.discard_reason}" if letter.discard_reason else ""
        return forms.two_lines(label, format_html("{} {}{}", who, labels.ago(at, timezone.now()), reason))


def _displayed(letter: DeadLetter) -> Any:
    return displayed_payload(letter.task_type, TaskPayload.objects.filter(pk=letter.task_id).first())
