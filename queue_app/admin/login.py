"""The login form of the admin, with the limit of failed logins that the API has."""

from typing import Any

from django.contrib.admin import AdminSite
from django.contrib.admin.forms import AdminAuthenticationForm
from django.core.exceptions import ValidationError
from django.utils.translation import gettext as _

from queue_app import conf
from queue_app.core.tally import failed_logins
from queue_app.models.columns import USER_LENGTH


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
