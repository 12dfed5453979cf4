"""The page that sends a signal to a workflow."""

import uuid

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy as _lazy

from queue_app.admin.approvals import SignalForm
from queue_app.admin.columns import permission
from queue_app.admin.mixins import QueueAppAdmin, page
from queue_app.exceptions import InvalidTaskData, TaskQueueError
from queue_app.models import Workflow
from queue_app.models.audit_entry import REASON_LENGTH
from queue_app.models.columns import NAME_LENGTH
from queue_app.services.control.audit import ADMIN
from queue_app.services.enqueue.validate import check_reason
from queue_app.services.lifecycle.signals import signal
from queue_app.sql.database import atomic
from queue_app.sql.workflow_health import awaited

#: Tasks that wait for signals, which the form names.
NAMED = 50


class WorkflowSignalForm(SignalForm):
    """The name of the signal, its payload, and the reason."""

    name = forms.CharField(
        label=_lazy("Signal"), max_length=NAME_LENGTH, widget=forms.TextInput({"class": "vTextField"})
    )

    def __init__(self, data: object = None, initial: str = "") -> None:
        super().__init__(None, data)
        self.fields["name"].initial = initial


class WorkflowSignalMixin(QueueAppAdmin[Workflow]):
    """The form of a signal to a workflow, which the first of its tasks that waits for it takes."""

    has_send_permission = permission("send_signal")

    @page("<uuid:pk>/signal/", "signal")
    def signal_view(self, request: HttpRequest, pk: uuid.UUID) -> HttpResponse:
        flow = self.visible(request, pk, self.has_send_permission(request))
        if flow is None:
            return self.gone(request, pk)
        names = list(dict.fromkeys(each.signal for each in awaited([flow.pk], NAMED)))
        form = WorkflowSignalForm(request.POST or None, names[0] if names else "")
        if form.is_valid() and self._send(request, flow, form):
            return HttpResponseRedirect(self.url_of("change", pk))
        title = _("Send a signal to %(name)s") % {"name": flow.name}
        return self.own_page(request, "workflow/signal.html", title, original=flow, form=form, names=names)

    def _send(self, request: HttpRequest, flow: Workflow, form: WorkflowSignalForm) -> bool:
        """Send the signal of a valid form; return false if the page must be shown again."""
        name = form.cleaned_data["name"].strip()
        try:
            with atomic():
                reason = check_reason(form.cleaned_data["reason"].strip(), REASON_LENGTH)
                payload = form.payload()
                sent = signal(flow.pk, name, payload, by=request.user.get_username(), via=ADMIN, reason=reason)
                self.log_action_of(request, [flow], f"Sent the signal {name}.", reason)
        except (InvalidTaskData, forms.ValidationError) as error:
            field = getattr(error, "field", "")
            form.add_error(field if field in form.fields else None, str(getattr(error, "message", error)))
            return False
        except TaskQueueError as error:
            self.message_user(request, str(error), messages.ERROR)
            return True
        waits = _("a task goes on.") if sent.is_awaited else _("it is kept until a task waits for it.")
        said = _("The signal %(name)s is sent; %(what)s") % {"name": name, "what": waits}
        self.message_user(request, said, messages.SUCCESS)
        return True
