"""What the plain admin site gets: names in the viewer's language, a grouped menu, a limit on failed logins.

Django derives the name of a field from its attribute, so no call of gettext in the models holds it. ``TEXTS`` lets
makemessages find the names that pages show; a test compares them with the pages.
"""

from typing import Any, Final

from django.apps import apps
from django.contrib.admin import AdminSite
from django.contrib.admin.forms import AdminAuthenticationForm
from django.core.exceptions import ValidationError
from django.db import DEFAULT_DB_ALIAS
from django.http import HttpRequest
from django.urls import URLPattern, URLResolver
from django.utils.translation import gettext as _, gettext_lazy as _lazy, gettext_noop as _noop

from queue_app import conf
from queue_app.admin.unavailable import answers_without_database
from queue_app.core.counters import failed_logins
from queue_app.dashboard import labels
from queue_app.dashboard.sentences import OVERVIEW, sections
from queue_app.models.fields import USER_LENGTH
from queue_app.sql.database import alias

# The login form of the admin, with the limit of failed logins that the API has.


class LimitedLoginForm(AdminAuthenticationForm):
    """Refuses a name, before a password is hashed, once too many passwords from one address were wrong."""

    def clean(self) -> dict[str, Any]:
        """Raise ``ValidationError``."""
        address = self.request.META.get("REMOTE_ADDR") if self.request else ""
        name = (address or "", str(self.cleaned_data.get("username") or "")[:USER_LENGTH])
        wait = failed_logins.wait(*name, limit=conf.load()[0].api.failed_logins_per_minute)
        if wait is not None:
            text = _("Too many failed logins. Try again in %(seconds)d seconds.")
            raise ValidationError(text, code="too_many", params={"seconds": max(1, round(wait))})
        try:
            return super().clean()
        except ValidationError:
            failed_logins.add(*name)
            raise


def limit_logins(site: AdminSite) -> None:
    """Give a site this form, unless the project has its own."""
    if site.login_form is None:
        site.login_form = LimitedLoginForm


# The home page of the admin, with the overview's verdict.


def show_verdict(site: AdminSite) -> None:
    """Let the home page begin with the verdict, and both it and the overview say so while PostgreSQL is away."""
    if site.index_template is None:
        site.index_template = "admin/queue_app/index.html"
    addresses = site.get_urls

    def get_urls() -> list[URLResolver | URLPattern]:
        found = addresses()
        names = {"index", "app_list"} if alias() == DEFAULT_DB_ALIAS else {"app_list"}
        for each in found:
            if isinstance(each, URLPattern) and each.name in names and each.callback is not None:
                each.callback = answers_without_database(each.callback)
        return found

    site.get_urls = get_urls  # type: ignore[method-assign]


# The menu of the admin: the overview and four groups, instead of all models by the alphabet.

APP: Final = "queue_app"


def group_menu(site: AdminSite) -> None:
    """Let a site list the task queue in groups, on its index, in its side bar, and in themes that read the same list.

    Only this app's entry is replaced, where the site has put it.
    """
    listed = site.get_app_list

    def get_app_list(request: HttpRequest, app_label: str | None = None) -> list[Any]:
        found = listed(request, app_label)
        if app_label is not None:  # the page of one app
            return found
        return [group for app in found for group in (_groups(request, app) if _is_ours(app) else [app])]

    site.get_app_list = get_app_list  # type: ignore[method-assign]


def _is_ours(app: dict[str, Any]) -> bool:
    names = {model["object_name"] for model in app["models"]}
    return app.get("app_label") == APP and bool(names) and OVERVIEW not in names


def _groups(request: HttpRequest, app: dict[str, Any]) -> list[dict[str, Any]]:
    """Return an app of Django's list as one app for each section; the overview comes first."""
    found = [
        app | {"name": f"{app['name']}: {section.title}", "models": section.pages}
        for section in sections(app["models"])
    ]
    found[0]["models"] = [_overview(request, app["app_url"]), *found[0]["models"]]
    return found


def _overview(request: HttpRequest, address: str) -> dict[str, Any]:
    # Django marks an entry as the current page when its address is a part of the page's; this one is a part of all.
    return {
        "model": None,
        "name": _("Overview"),
        "object_name": OVERVIEW,
        "perms": {"add": False, "change": False, "delete": False, "view": True},
        "admin_url": address if request.path == address else f"{address}?",
        "add_url": None,
        "view_only": True,
    }


#: Models, in the singular and the plural.
TEXTS: Final = (
    _noop("task"), _noop("tasks"), _noop("workflow"), _noop("workflows"), _noop("task type"), _noop("task types"),
    _noop("dead letter"), _noop("dead letters"), _noop("queue"), _noop("queues"), _noop("worker"), _noop("workers"),
    _noop("schedule"), _noop("schedules"), _noop("limit"), _noop("limits"), _noop("priority policy"),
    _noop("priority policies"), _noop("runtime settings"), _noop("audit entry"), _noop("audit log"),
    _noop("operation"), _noop("operations"), _noop("saved view"), _noop("saved views"), _noop("API key"),
    _noop("API keys"), _noop("worker token"), _noop("worker tokens"), _noop("maintenance job"),
    _noop("maintenance jobs"), _noop("queue snapshot"), _noop("queue snapshots"), _noop("index"),
    _noop("- Select an option -"), _noop("Run"),  # which Django 6.1 says in English only
    # fields
    _noop("action"), _noop("active"), _noop("adaptive"), _noop("after"), _noop("anchor"),
    _noop("arguments"), _noop("at"), _noop("attempts"), _noop("before"), _noop("by"), _noop("capabilities"),
    _noop("catch up"), _noop("catch up limit"), _noop("catch up seconds"), _noop("completed"),
    _noop("concurrency key"), _noop("count"), _noop("cron"),
    _noop("description"), _noop("done"), _noop("ends at"), _noop("enqueued"), _noop("error"), _noop("every"),
    _noop("failed"), _noop("grace seconds"),
    _noop("instant parameter"),
    _noop("instants"), _noop("jitter"), _noop("kind"), _noop("max in flight"), _noop("name"), _noop("notes"),
    _noop("number"), _noop("of"), _noop("order"), _noop("overlap"),
    _noop("paused"), _noop("priority"), _noop("probe"), _noop("query"),
    _noop("reason"), _noop("retry delay"),
    _noop("reads encrypted"), _noop("scheduled"),
    _noop("shared"), _noop("starts at"), _noop("state"), _noop("target"),
    _noop("target id"), _noop("tasks done"), _noop("throttled until"), _noop("timeout"),
    _noop("user"), _noop("via"), _noop("weight"), _noop("zone"),
)  # fmt: skip


def translate_names() -> None:
    """Show names and choices in the viewer's language. Migrations keep the English ones."""
    known, choices = frozenset(TEXTS), frozenset(labels.TEXTS)
    for model in apps.get_app_config("queue_app").get_models():
        options = model._meta  # noqa: SLF001 - Django documents it
        for name in ("verbose_name", "verbose_name_plural"):
            if (text := str(getattr(options, name))) in known:
                setattr(options, name, _lazy(text))
        for field in options.fields:
            if (text := str(field.verbose_name)) in known or text in labels.RENAMED:
                field.verbose_name = labels.RENAMED.get(text) or _lazy(text)
            if field.choices and any(label in choices for _value, label in field.flatchoices):
                field.choices = [
                    (value, labels.RENAMED.get(label) or _lazy(label)) for value, label in field.flatchoices
                ]
