"""The page on which staff send a task the signal that it waits for, such as an approval."""

import uuid
from typing import Any

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy as _lazy

from queue_app.admin.columns import permission
from queue_app.admin.forms import read_json
from queue_app.admin.mixins import QueueAppAdmin, page
from queue_app.admin.task_detail import load_detail
from queue_app.core.signals import MAX_TEXT, Fields
from queue_app.core.states import Status
from queue_app.exceptions import InvalidTaskData, InvalidTransition, TaskQueueError
from queue_app.models import Task
from queue_app.models.audit_entry import REASON_LENGTH
from queue_app.services.control.audit import ADMIN
from queue_app.services.enqueue.validate import check_reason
from queue_app.services.lifecycle.signals import signal
from queue_app.services.read.awaited import Awaited, awaited
from queue_app.sql.database import atomic


class SignalForm(forms.Form):
    """The fields that the task declares, else one for JSON; and the reason."""

    def __init__(self, fields: Fields | None, data: Any = None) -> None:
        super().__init__(data)
        self._declared = fields
        if fields is None:
            self.fields["payload"] = forms.CharField(
                required=False, label=_("Payload"), help_text=_('JSON, such as {"approved": true}. Empty: null.'),
                widget=forms.Textarea({"class": "vLargeTextField tq-json", "rows": 6, "spellcheck": "false"}),
            )  # fmt: skip
        for name, field in (fields or {}).items():
            self.fields[f"field_{name}"] = _form_field(name, field)
        self.fields["reason"] = forms.CharField(
            label=_("Reason"), required=False, max_length=REASON_LENGTH,
            widget=forms.TextInput({"class": "vTextField"}), help_text=_("Shown in the history and the audit log."),
        )  # fmt: skip

    def payload(self) -> Any:
        if self._declared is None:
            text = self.cleaned_data["payload"].strip()
            return read_json(text) if text else None
        given = {name: self.cleaned_data[f"field_{name}"] for name in self._declared}
        return {name: value for name, value in given.items() if value not in (None, "")}


def _form_field(name: str, field: dict[str, Any]) -> forms.Field:
    required = field.get("required", True)
    common: dict[str, Any] = {
        "label": field.get("title") or name.replace("_", " ").capitalize(),
        "help_text": field.get("description", ""),
        "required": required,
    }
    if "enum" in field:
        choices = [(each, each) for each in field["enum"]]
        return forms.ChoiceField(choices=choices if required else [("", "-"), *choices], **common)
    match field["type"]:
        case "boolean":  # yes and no are both answers, so neither is the default
            return forms.TypedChoiceField(
                choices=[("true", _lazy("Yes")), ("false", _lazy("No"))], coerce=lambda text: text == "true",
                empty_value=None, widget=forms.RadioSelect, **common,
            )  # fmt: skip
        case "integer":
            return forms.IntegerField(**common)
        case "number":
            return forms.FloatField(**common)
    return forms.CharField(
        max_length=MAX_TEXT, widget=forms.Textarea({"class": "vLargeTextField", "rows": 3}), **common
    )


class ApprovalMixin(QueueAppAdmin[Task]):
    """The page of the signal that a task waits for."""

    has_send_permission = permission("send_signal")
    may_view_payload = permission("view_payload")

    @page("<uuid:pk>/signal/", "signal")
    def signal_view(self, request: HttpRequest, pk: uuid.UUID) -> HttpResponse:
        """Show the form of the signal that the task waits for; once posted, send it."""
        task = self.visible(request, pk, self.has_send_permission(request))
        if task is None:
            return self.gone(request, pk)
        wanted = next(iter(awaited(pk)), None) if task.status == Status.BLOCKED else None
        if wanted is None:
            self.message_user(request, _("The task waits for no signal now."), messages.WARNING)
            return HttpResponseRedirect(self.url_of("change", pk))
        form = SignalForm(wanted.fields, request.POST or None)
        if form.is_valid() and self._send(request, task, wanted, form):
            return HttpResponseRedirect(self.next_page(request) or self.url_of("change", pk))
        return self.own_page(
            request, "task/signal.html", _("Send the signal %(name)s") % {"name": wanted.signal},
            original=task, form=form, awaited=wanted,
            detail=load_detail(task, timezone.now(), may_view_payload=bool(self.may_view_payload(request))),
        )  # fmt: skip

    def _send(self, request: HttpRequest, task: Task, wanted: Awaited, form: SignalForm) -> bool:
        """Send the signal of a valid form; return false if the page must be shown again."""
        try:
            with atomic():
                reason = check_reason(form.cleaned_data["reason"].strip(), REASON_LENGTH)
                payload = form.payload()
                sent = signal(task.pk, wanted.signal, payload, by=request.user.get_username(), via=ADMIN, reason=reason)
                if not sent.is_awaited:  # then it is rolled back
                    raise InvalidTransition(_("The task no longer waits for this signal. Nothing was sent."), status="")
                self.log_action_of(request, [task], f"Sent the signal {wanted.signal}.", reason)
        except (InvalidTaskData, forms.ValidationError) as error:
            is_reason = getattr(error, "field", "") == "reason"
            form.add_error("reason" if is_reason else None, str(getattr(error, "message", error)))
            return False
        except TaskQueueError as error:
            self.message_user(request, str(error), messages.ERROR)
            return True
        done = _("The signal %(name)s is sent; the task goes on.") % {"name": wanted.signal}
        self.message_user(request, done, messages.SUCCESS)
        return True
