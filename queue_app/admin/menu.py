"""The menu of the admin: the overview and four groups, instead of all models by the alphabet."""

from typing import Any, Final

from django.contrib.admin import AdminSite
from django.http import HttpRequest
from django.utils.translation import gettext as _

from queue_app.dashboard.sections import OVERVIEW, sections

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
        app | {"name": f"{app['name']}: {section.title}", "models": [page.model for page in section.pages]}
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
