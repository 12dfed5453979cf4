"""The page on which staff send a signal, such as an approval, to a task that waits for it; workflows have one too."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils import timezone
from django.utils.translation import gettext as _, gettext_lazy as _lazy

from queue_app.admin.arguments import JSON_AREA
from queue_app.admin.forms import JSONText, ReasonField, permission
from queue_app.admin.mixins import QueueAppAdmin, object_page
from queue_app.admin.task_detail import load_detail
from queue_app.core.states import Status
from queue_app.core.steps import MAX_TEXT, Fields
from queue_app.exceptions import InvalidTransition
from queue_app.models import Task, Workflow
from queue_app.services.control.audit import ADMIN
from queue_app.services.lifecycle.steps import signal
from queue_app.sql.steps import awaited as awaited_by_task


class SignalForm(forms.Form):
    """The fields that the task declares, else one for JSON; and the reason."""

    def __init__(self, fields: Fields | None, data: Any = None, **options: Any) -> None:
        super().__init__(data, **options)
        self._declared = fields
        if fields is None:
            self.fields["payload"] = JSONText(
                required=False, label=_("Payload"), help_text=_('JSON, such as {"approved": true}. Empty: null.'),
                widget=forms.Textarea(JSON_AREA | {"rows": 6}),
            )  # fmt: skip
        for name, field in (fields or {}).items():
            self.fields[f"field_{name}"] = _form_field(name, field)
        self.fields["reason"] = ReasonField(help_text=_("Shown in the history and the audit log."))

    def payload(self) -> Any:
        if self._declared is None:
            return self.cleaned_data["payload"]
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
    if field["type"] == "boolean":  # yes and no are both answers, so neither is the default
        return forms.TypedChoiceField(
            choices=[("true", _lazy("Yes")), ("false", _lazy("No"))], coerce=lambda text: text == "true",
            empty_value=None, widget=forms.RadioSelect, **common,
        )  # fmt: skip
    if field["type"] in ("integer", "number"):
        return (forms.IntegerField if field["type"] == "integer" else forms.FloatField)(**common)
    area = forms.Textarea({"class": "vLargeTextField", "rows": 3})
    return forms.CharField(max_length=MAX_TEXT, widget=area, **common)


class SignalMixin[M: Task | Workflow](QueueAppAdmin[M]):
    has_send_permission = permission("send_signal")

    def send_signal(self, request: HttpRequest, found: M, form: SignalForm, name: str = "") -> HttpResponse | None:
        """Send the signal of a form, which may name it; return ``None`` if the page must be shown again."""

        def act(values: dict[str, Any]) -> HttpResponse:
            sought, reason = name or values["name"], values["reason"]
            by = request.user.get_username()
            sent = signal(found.pk, sought, form.payload(), by=by, via=ADMIN, reason=reason)
            if isinstance(found, Task) and not sent.is_awaited:  # then it is rolled back
                raise InvalidTransition(_("The task no longer waits for this signal. Nothing was sent."), status="")
            self.log_action_of(request, [found], f"Sent the signal {sought}.", reason)
            if isinstance(found, Task):
                done = _("The signal %(name)s is sent; the task continues.") % {"name": sought}
            else:
                waits = _("a task continues.") if sent.is_awaited else _("it is kept until a task waits for it.")
                done = _("The signal %(name)s is sent; %(what)s") % {"name": sought, "what": waits}
            self.message_user(request, done, messages.SUCCESS)
            return HttpResponseRedirect(self.next_page(request) or self.url_of("change", found.pk))

        return self.act_by_form(request, form, act)


class TaskSignalMixin(SignalMixin[Task]):
    @object_page("signal", "send")
    def signal_view(self, request: HttpRequest, task: Task) -> HttpResponse:
        wanted = next(iter(awaited_by_task(task.pk)), None) if task.status == Status.BLOCKED else None
        if wanted is None:
            self.message_user(request, _("The task waits for no signal now."), messages.WARNING)
            return HttpResponseRedirect(self.url_of("change", task.pk))
        form = SignalForm(wanted.fields, request.POST or None)
        return self.send_signal(request, task, form, wanted.signal) or self.own_page(
            request, "task/signal.html", _("Send the signal %(name)s") % {"name": wanted.signal},
            original=task, form=form, awaited=wanted, submit=_("Send"),
            detail=load_detail(task, timezone.now(), may_view_payload=self.may_view_payload(request)),
        )  # fmt: skip
