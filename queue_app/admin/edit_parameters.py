"""The page on which staff edit the parameters of a task before it runs again."""

import uuid
from collections.abc import Callable
from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect

from queue_app.admin.forms import EditForm
from queue_app.admin.mixins import QueueAppAdmin
from queue_app.admin.task_detail import pretty, with_names
from queue_app.dashboard.translation import translate_error
from queue_app.displayed_payload import argument_names
from queue_app.exceptions import InvalidTaskData, TaskQueueError
from queue_app.models import DeadLetter, Task
from queue_app.services.read.dead_letters import displayed_parameters
from queue_app.sql.database import atomic


class EditParametersMixin[M: Task | DeadLetter](QueueAppAdmin[M]):
    """A page with a task's parameters, secrets masked; a mask that stays keeps its value."""

    def edit_parameters(  # noqa: PLR0913 - the page, and its texts
        self,
        request: HttpRequest,
        found: M,
        task_id: uuid.UUID,
        act: Callable[[dict[str, Any], str], tuple[str, uuid.UUID]],
        *,
        title: str,
        submit: str,
        explanation: str,
    ) -> HttpResponse:
        """Show the form; once posted, call ``act(edited, reason)`` in a transaction.

        ``edited`` has ``parameters`` and ``args``, as the services take them. ``act`` returns a message and the id of
        the page to go to.
        """
        displayed = displayed_parameters(task_id)
        if displayed is None:
            return self.gone(request, str(found.pk))
        args, parameters = displayed
        names = list(args) if isinstance(args, dict) else argument_names(found.task_type, len(args))
        shown = {"names": names, "args": pretty(with_names(found.task_type, args)), "parameters": pretty(parameters)}
        form = EditForm(request.POST or None, initial=shown)
        if not args:
            del form.fields["args"]
        if form.is_valid():
            try:
                with atomic():
                    edited = {name: form.cleaned_data.get(name) for name in ("parameters", "args")}
                    done, target = act(edited, form.cleaned_data["reason"])
            except InvalidTaskData as error:
                root = error.field.partition(".")[0].partition("[")[0]
                form.add_error(root if root in form.fields else "parameters", error.message)
            except TaskQueueError as error:
                self.message_user(request, translate_error(error), messages.ERROR)
                return HttpResponseRedirect(self.url_of("change", found.pk))
            else:
                self.message_user(request, done, messages.SUCCESS)
                return HttpResponseRedirect(self.url_of("change", target))
        context = {"original": found, "form": form, "submit": submit, "explanation": explanation}
        return self.own_page(request, "deadletter/edit.html", title, **context)
