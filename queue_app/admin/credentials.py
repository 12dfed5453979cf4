"""The pages of API keys and worker tokens: make one, see its secret once, see its last use, rotate and revoke it."""

from datetime import timedelta
from functools import partial
from typing import Any, Final

from django import forms
from django.contrib import admin
from django.contrib.auth import get_user_model
from django.core.exceptions import PermissionDenied
from django.db.models import Model
from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _, gettext_lazy as _lazy

from queue_app.admin.forms import ReasonField, column, permission, two_lines
from queue_app.admin.mixins import ReadOnlyAdmin, action_page, object_page
from queue_app.dashboard import labels
from queue_app.exceptions import InvalidTaskData
from queue_app.models import ApiKey, WorkerToken
from queue_app.models.fields import NAME_LENGTH
from queue_app.models.operation import REASON_LENGTH
from queue_app.services.control.api_keys import SCOPES, create_key, revoke_key
from queue_app.services.control.encrypted import PERMISSION
from queue_app.services.worker import tokens
from queue_app.sql.database import atomic, connection

DAY: Final = 86_400
LIFETIMES: Final = (
    (str(30 * DAY), _lazy("30 days")),
    (str(90 * DAY), _lazy("90 days")),
    (str(365 * DAY), _lazy("a year")),
    ("", _lazy("until revoked")),
)
OVERLAPS: Final = (("3600", _lazy("for 1 hour")), (str(DAY), _lazy("for 1 day")), ("0", _lazy("not at all")))


class CredentialForm(forms.Form):
    """The parts that keys and tokens share."""

    name = forms.CharField(max_length=NAME_LENGTH, label=_lazy("Name"), help_text=_lazy("What it is for."))
    lifetime = forms.ChoiceField(choices=LIFETIMES, initial=LIFETIMES[1][0], required=False, label=_lazy("Valid for"))
    reason = ReasonField(help_text=_lazy("Shown in the audit log."), widget=forms.TextInput)

    @property
    def expires_in(self) -> timedelta | None:
        seconds = self.cleaned_data["lifetime"]
        return timedelta(seconds=int(seconds)) if seconds else None


class KeyForm(CredentialForm):
    username = forms.CharField(label=_lazy("User"), help_text=_lazy("The key acts as this user."))
    scopes = forms.MultipleChoiceField(
        choices=[(scope, scope) for scope in SCOPES],
        required=False,
        widget=forms.CheckboxSelectMultiple,
        label=_lazy("Scopes"),
        help_text=_lazy("What the key may do, as far as its user may. None ticked: all that the user may."),
    )
    field_order = ("name", "username", "scopes", "lifetime", "reason")

    def clean_username(self) -> Any:
        users = get_user_model()
        name = self.cleaned_data["username"]
        found = users._default_manager.filter(**{users.USERNAME_FIELD: name}).first()  # noqa: SLF001 - as Django says
        if found is None:
            raise forms.ValidationError(_("There is no user with this name."))
        return found


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


class CredentialAdmin[M: Model](ReadOnlyAdmin[M]):
    """A list of keys or tokens, a form for a new one, and a page that shows a secret once. No row holds a secret."""

    actions = None
    form_class: type[CredentialForm]
    #: What to do with the secret.
    usage: Any
    change_form_template = "admin/queue_app/credential/change_form.html"
    shows_changes = True
    used = column(
        _lazy("last use"),
        lambda found: labels.ago(found.last_used_at, timezone.now()) if found.last_used_at else _("never"),
    )
    made = column(
        _lazy("made"),
        lambda found: two_lines(
            labels.ago(found.created_at, timezone.now()),
            _("by %(name)s") % {"name": found.created_by} if found.created_by else "",
        ),
    )

    def has_add_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm(f"queue_app.add_{self.opts.model_name}")

    def has_revoke_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm(f"queue_app.change_{self.opts.model_name}")

    @admin.display(description=_lazy("state"))
    def state(self, found: Any) -> SafeString:
        now = timezone.now()
        when: SafeString | str
        ended = found.revoked_at or (found.expires_at if found.expires_at and found.expires_at <= now else None)
        if ended:
            label, kind, when = (_("revoked") if found.revoked_at else _("expired")), "stopped", labels.ago(ended, now)
        else:
            label, kind = _("valid"), "active"
            when = format_html("{} {}", _("ends"), labels.ago(found.expires_at, now)) if found.expires_at else ""
        return two_lines(format_html('<span class="tq-label tq-worker-{}">{}</span>', kind, label), when)

    def create(self, request: HttpRequest, form: Any) -> tuple[M, str]:
        """Store a new one; return it with its secret."""
        raise NotImplementedError

    def make_form(self, request: HttpRequest) -> CredentialForm:
        return self.form_class(request.POST or None)

    def add_view(self, request: HttpRequest, form_url: str = "", extra_context: Any = None) -> HttpResponse:
        """Show the form; once posted, the secret."""
        if not self.has_add_permission(request):
            raise PermissionDenied
        form = self.make_form(request)
        if form.is_valid():
            try:
                with atomic():
                    made, secret = self.create(request, form)
                    request.taskqueue_edit = {"after": self.facts(made), "reason": form.cleaned_data["reason"]}  # type: ignore[attr-defined]
                    self.log_addition(request, made, _("Added."))
            except InvalidTaskData as error:
                form.add_error(error.field if error.field in form.fields else None, error.message)
            else:
                return self.show_secret(request, made, secret)
        title = _("Add %(name)s") % {"name": self.opts.verbose_name}
        return self.own_page(request, "credential/add.html", title, form=form, submit=title)

    def show_secret(self, request: HttpRequest, found: M, secret: str) -> HttpResponse:
        """Return the only page that ever shows a secret; no cache keeps it."""
        title = _("The secret of %(name)s") % {"name": found}
        answer = self.own_page(
            request, "credential/secret.html", title, original=found, secret=secret, usage=self.usage
        )
        answer["Cache-Control"] = "no-store"
        return answer

    def facts(self, found: Any) -> dict[str, Any]:
        """Return what the audit log keeps of a new one."""
        until = found.expires_at
        return {"name": found.name, "expires_at": until.isoformat() if until else None}

    def page_context(self, request: HttpRequest, found: Any) -> dict[str, Any]:
        return super().page_context(request, found) | {
            "may_revoke": found.revoked_at is None and self.has_revoke_permission(request),
            "revoke_url": self.url_of("revoke", found.pk),
            "target": self.opts.model_name,
        }


class ApiKeyAdmin(CredentialAdmin[ApiKey]):
    """The keys with which programs call the API. Superusers make keys for others, all others for themselves."""

    empty_text = _lazy("No API key yet.")
    fields = ("name", "owner", "hint", "allows", "state", "used", "made")
    form_class = KeyForm
    list_display = ("name", "owner", "hint", "allows", "state", "used", "made")
    ordering = ("-id",)
    search_fields = ("name", "prefix")
    usage = _lazy("Send it with each call: Authorization: Bearer, a space, and the key.")

    hint = column(_lazy("key"), lambda key: format_html("<code>tq_{}_…</code>", key.prefix))
    owner = column(_lazy("user"), lambda key: key.user.get_username() if key.user else _("deleted"))
    allows = column(_lazy("scopes"), lambda key: ", ".join(key.scopes) or _("all that the user may"))

    def make_form(self, request: HttpRequest) -> CredentialForm:
        """Ask superusers for the user; a key for another user would hand out that user's permissions."""
        form = super().make_form(request)
        if not request.user.is_superuser:
            del form.fields["username"]
        elif not form.is_bound:
            form.initial["username"] = request.user.get_username()
        return form

    def create(self, request: HttpRequest, form: KeyForm) -> tuple[ApiKey, str]:
        given = form.cleaned_data
        until = timezone.now() + form.expires_in if form.expires_in else None
        by = request.user.get_username()
        return create_key(
            given.get("username", request.user), given["name"], scopes=given["scopes"], expires_at=until, by=by
        )

    def facts(self, found: ApiKey) -> dict[str, Any]:
        return super().facts(found) | {"prefix": found.prefix, "user": str(found.user), "scopes": found.scopes}

    @action_page("revoke", "revoke")
    def revoke_view(self, request: HttpRequest, key: ApiKey, reason: str) -> str:
        if not revoke_key(key.pk):
            return _("The key was revoked before.")
        self.audit(request, [key], "Revoked.", action="revoke", after={"prefix": key.prefix}, reason=reason)
        return _("The key is revoked: calls with it are refused within seconds.")


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

    @action_page("revoke", "revoke")
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
