"""The pages of worker tokens: make one, see its secret once, see its last use, rotate and revoke it."""

from datetime import timedelta
from functools import partial
from typing import Any, Final

from django import forms
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.utils.html import format_html
from django.utils.translation import gettext as _, gettext_lazy as _lazy, ngettext_lazy

from queue_app.admin.credentials import DAY, CredentialAdmin, CredentialForm
from queue_app.admin.forms import column, permission, with_number
from queue_app.admin.mixins import action_page, object_page
from queue_app.models import Worker, WorkerToken
from queue_app.models.operation import REASON_LENGTH
from queue_app.models.worker import LIVING
from queue_app.remote import tokens
from queue_app.services.control.encrypted import PERMISSION
from queue_app.sql.database import atomic, connection

_STOPS: Final[Any] = ngettext_lazy(
    "%(shown)s worker counts as dead; its tasks are queued again.",
    "%(shown)s workers count as dead; their tasks are queued again.", "n",
)  # fmt: skip
OVERLAPS: Final = (("3600", _lazy("for 1 hour")), (str(DAY), _lazy("for 1 day")), ("0", _lazy("not at all")))


class TokenForm(CredentialForm):
    queues = forms.CharField(
        required=False, label=_lazy("Queues"), help_text=_lazy("Names, separated by commas. Empty: all queues.")
    )
    capabilities = forms.CharField(
        required=False, label=_lazy("Capabilities"), help_text=_lazy("Names, separated by commas. Empty: none.")
    )
    max_in_flight = forms.IntegerField(
        initial=100, min_value=1, max_value=2**31 - 1, label=_lazy("Tasks at the same time"),
        help_text=_lazy("Maximum number of tasks that its workers may hold together."),
    )  # fmt: skip
    reads_encrypted = forms.BooleanField(
        required=False, label=_lazy("Reads encrypted tasks"),
        help_text=_lazy("The server decrypts these tasks for its workers."),
    )  # fmt: skip
    field_order = ("name", "queues", "capabilities", "max_in_flight", "reads_encrypted", "lifetime", "reason")


class WorkerTokenAdmin(CredentialAdmin[WorkerToken]):
    """The tokens of workers that work over HTTP."""

    empty_text = _lazy("No worker token yet. Workers with access to the servers need none.")
    fields = (
        "name", "secret_hint", "for_queues", "offers", "max_in_flight", "reads_encrypted", "state", "used", "made"
    )  # fmt: skip
    form_class = TokenForm
    list_display = ("name", "secret_hint", "for_queues", "offers", "max_in_flight", "state", "used", "made")
    ordering = ("name",)
    search_fields = ("name",)
    usage = _lazy("Give it to the worker as TASKQUEUE_TOKEN, or with --token.")

    secret_hint = column(_lazy("token"), lambda token: format_html("<code>{}…</code>", token.hint))
    for_queues = column(_lazy("queues"), lambda token: ", ".join(token.queues) or _("all"))
    offers = column(_lazy("capabilities"), lambda token: ", ".join(token.capabilities) or "-")

    has_rotate_permission = permission("change_workertoken")

    def make_form(self, request: HttpRequest) -> CredentialForm:
        """Let only those who may decrypt make a token whose workers get decrypted tasks."""
        form = super().make_form(request)
        if not request.user.has_perm(PERMISSION):
            del form.fields["reads_encrypted"]
        return form

    def create(self, request: HttpRequest, form: TokenForm) -> tuple[WorkerToken, str]:
        given = form.cleaned_data
        return tokens.create(
            given["name"], queues=_names(given["queues"]), capabilities=_names(given["capabilities"]),
            max_in_flight=given["max_in_flight"], reads_encrypted=given.get("reads_encrypted", False),
            expires_in=form.expires_in, by=request.user.get_username(),
        )  # fmt: skip

    def facts(self, found: WorkerToken) -> dict[str, Any]:
        names = ("queues", "capabilities", "max_in_flight", "reads_encrypted")
        return super().facts(found) | {name: getattr(found, name) for name in names}

    def _of_revoke(self, _request: HttpRequest, token: WorkerToken) -> list[Any]:
        if token.revoked_at is not None:
            return []
        workers = Worker.objects.filter(token_id=token.id, status__in=LIVING).count()
        return [with_number(_STOPS, workers), _("The token cannot be made valid again: make a new one.")]

    @action_page("revoke", "revoke", label=_lazy("Revoke"), consequences=_of_revoke)
    def revoke_view(self, request: HttpRequest, token: WorkerToken, reason: str) -> str:
        """Revoke one token; its workers stop after the commit."""
        tokens.forbid(token.name)
        self.audit(request, [token], "Revoked.", action="revoke", after={"hint": token.hint}, reason=reason)
        connection().on_commit(partial(tokens.revoke, token.name))
        return _("The token is revoked. Its workers count as dead, and their tasks are queued again.")

    @object_page("rotate", "rotate", post=True)
    def rotate_view(self, request: HttpRequest, token: WorkerToken) -> HttpResponse:
        """Give a token a new secret, and show it once."""
        if token.revoked_at:
            return self.gone(request, str(token.pk))
        if token.reads_encrypted and not request.user.has_perm(PERMISSION):
            raise PermissionDenied
        seconds = request.POST.get("overlap", "")
        overlap = timedelta(seconds=int(seconds) if seconds in dict(OVERLAPS) else 3600)
        with atomic():
            reason = request.POST.get("reason", "").strip()[:REASON_LENGTH]
            token, secret = tokens.rotate(token.name, overlap=overlap)
            after = {"hint": token.hint, "old_valid_until": token.old_until.isoformat() if token.old_until else None}
            self.audit(request, [token], "Rotated.", action="rotate", after=after, reason=reason)
        return self.show_secret(request, token, secret)

    def page_context(self, request: HttpRequest, found: WorkerToken) -> dict[str, Any]:
        rotate = {"rotate_url": self.url_of("rotate", found.pk), "overlaps": OVERLAPS}
        return super().page_context(request, found) | rotate


def _names(text: str) -> list[str]:
    return [name for part in text.split(",") if (name := part.strip())]
