"""The pages of API keys, and what those of all credentials share: make one, see its secret once, revoke it."""

from collections.abc import Mapping
from datetime import timedelta
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

from queue_app.admin.forms import ReasonField, column, two_lines
from queue_app.admin.mixins import ReadOnlyAdmin, action_page
from queue_app.admin.pickers import Picker
from queue_app.dashboard import labels
from queue_app.dashboard.labels import word
from queue_app.exceptions import suggestion
from queue_app.models import ApiKey
from queue_app.models.fields import NAME_LENGTH
from queue_app.services.control.api_keys import PURPOSES, create_key, purposes_of, revoke_key

DAY: Final = 86_400
LIFETIMES: Final = (
    (str(30 * DAY), _lazy("30 days")),
    (str(90 * DAY), _lazy("90 days")),
    (str(365 * DAY), _lazy("a year")),
    ("0", _lazy("until revoked")),
)
#: Purpose of a key -> what it lets a program do.
_MEANS: Final[Mapping[str, Any]] = {
    "read": _lazy("Read: see tasks with their arguments and results, queues, workers, limits and schedules."),
    "submit": _lazy("Submit: enqueue tasks and workflows."),
    "operate": _lazy("Operate: cancel, retry, replay and reprioritise tasks, answer approvals, pause and resume."),
    "administer": _lazy(
        "Administer: change limits, queues and schedules, delete tasks, decrypt their data, read the audit log."
    ),
    "work": _lazy("Work: run tasks over HTTP. This needs a worker token instead of a key."),
}


def allowed(key: ApiKey) -> str:
    """Return what a key may do, in short."""
    return ", ".join(map(word, purposes_of(key.scopes)))


class CredentialForm(forms.Form):
    """The parts that keys and tokens share."""

    name = forms.CharField(
        max_length=NAME_LENGTH, label=_lazy("Name"), help_text=_lazy("What it is for, such as deploy script.")
    )
    lifetime = forms.ChoiceField(choices=LIFETIMES, initial=LIFETIMES[1][0], label=_lazy("Valid for"))
    reason = ReasonField(help_text=_lazy("Shown in the audit log."), widget=forms.TextInput)

    @property
    def expires_in(self) -> timedelta | None:
        return timedelta(seconds=int(self.cleaned_data["lifetime"])) or None


class PurposeWidget(forms.CheckboxSelectMultiple):
    """Checkboxes of purposes; no key is for work."""

    def create_option(self, name: str, value: Any, *args: Any, **options: Any) -> dict[str, Any]:
        option = super().create_option(name, value, *args, **options)
        return option | {"attrs": option["attrs"] | {"disabled": value not in PURPOSES}}


class KeyForm(CredentialForm):
    username = forms.CharField(
        label=_lazy("For whom"), help_text=_lazy("The key acts as this user. Give each program a user of its own.")
    )
    scopes = forms.MultipleChoiceField(
        choices=list(_MEANS.items()),
        widget=PurposeWidget,
        label=_lazy("What it may do"),
        help_text=_lazy("As far as its user may. What is not ticked is refused."),
    )
    field_order = ("username", "name", "scopes", "lifetime", "reason")

    def clean_username(self) -> Any:
        users = get_user_model()
        name = self.cleaned_data["username"]
        found = users._default_manager.filter(**{users.USERNAME_FIELD: name}).first()  # noqa: SLF001 - as Django says
        if found is None:
            picker: Any = self.fields["username"].widget
            raise forms.ValidationError(_("There is no user with this name.") + suggestion(name, picker.names()))
        return found


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
        _lazy("created"),
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
        next(iter(form.fields.values())).widget.attrs["autofocus"] = True

        def make(values: dict[str, Any]) -> HttpResponse:
            made, secret = self.create(request, form)
            request.taskqueue_edit = {"after": self.facts(made), "reason": values["reason"]}  # type: ignore[attr-defined]
            self.log_addition(request, made, _("Added."))
            return self.show_secret(request, made, secret)

        title = _("Add %(name)s") % {"name": self.opts.verbose_name}
        page = self.own_page(request, "credential/add.html", title, form=form, submit=title)
        return self.act_by_form(request, form, make) or page

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
    allows = column(_lazy("may do"), lambda key: allowed(key) or _("all that the user may"))

    def make_form(self, request: HttpRequest) -> CredentialForm:
        """Ask superusers for the user; a key for another user would hand out that user's permissions."""
        form = super().make_form(request)
        if request.user.is_superuser:
            form.fields["username"].widget = Picker(request.user, "account")
        else:
            del form.fields["username"]
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

    def _of_revoke(self, _request: HttpRequest, key: ApiKey) -> list[Any]:
        if key.revoked_at is not None:
            return []
        last = _("It was last used %(ago)s.") % {"ago": self.used(key)} if key.last_used_at else _("It was never used.")
        refused = _("Calls with it are refused within seconds. It cannot be made valid again: make a new one.")
        return [refused, format_html("{}", last)]

    @action_page("revoke", "revoke", label=_lazy("Revoke"), consequences=_of_revoke)
    def revoke_view(self, request: HttpRequest, key: ApiKey, reason: str) -> str:
        if not revoke_key(key.pk):
            return _("The key was revoked before.")
        self.audit(request, [key], "Revoked.", action="revoke", after={"prefix": key.prefix}, reason=reason)
        return _("The key is revoked: calls with it are refused within seconds.")
