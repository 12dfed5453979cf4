"""Fields in which staff pick names: a text field that lists the known ones, and refuses others where all are known.

``SOURCES`` says for each kind of name which ones are known, and who may see them.
"""

from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from types import MappingProxyType
from typing import Any, Final, NamedTuple
from zoneinfo import available_timezones

from django import forms
from django.contrib.auth import get_user_model
from django.utils import timezone
from django.utils.translation import gettext as _

from queue_app import conf, registry
from queue_app.core.limits import Scope
from queue_app.exceptions import suggestion
from queue_app.models import Limit, Queue, TaskStats, Worker
from queue_app.models.stats import StatsKind
from queue_app.models.worker import LIVING
from queue_app.sql.database import alias

#: Maximum number of names that a field lists, and age of the statistics that know names.
MOST: Final = 500
AGE: Final = timedelta(days=7)


class Source(NamedTuple):
    """Known names; with a permission, only for those who have it. ``is_complete``: there are no others."""

    names: Callable[[], Iterable[str]]
    permission: str = ""
    is_complete: bool = False


def _counted(kind: StatsKind) -> Iterable[str]:
    recent = TaskStats.objects.using(alias()).filter(kind=kind, since__gte=timezone.now() - AGE).order_by("-since")
    return set(recent.values_list("name", flat=True)[: 10 * MOST])


def _of_workers(field: str) -> Iterable[str]:
    workers = Worker.objects.using(alias()).filter(status__in=LIVING).order_by().values_list(field, flat=True)
    return {name for names in workers[:MOST] for name in names}


def _types() -> Iterable[str]:
    registry.discover()
    code = {name for name in registry.known_types() if not name.startswith(registry.OWN)}
    return {*code, *_of_workers("task_types"), *_counted(StatsKind.TYPE)}


def _keys() -> Iterable[str]:
    limits = Limit.objects.using(alias()).filter(scope=Scope.KEY).values_list("name", flat=True)[:MOST]
    return {*limits, *_counted(StatsKind.KEY)}


def _capabilities() -> Iterable[str]:
    tasks = [registry.get(name) for name in registry.known_types()]
    return {*_of_workers("capabilities"), *(each for task in tasks for each in getattr(task, "capabilities", ()))}


def _accounts() -> Iterable[str]:
    users: Any = get_user_model()
    active = users._default_manager.filter(is_active=True).order_by(users.USERNAME_FIELD)  # noqa: SLF001 - as Django says
    return list(active.values_list(users.USERNAME_FIELD, flat=True)[:MOST])


SOURCES: Final = {
    "account": Source(_accounts, "queue_app.add_apikey"),
    "task_type": Source(_types, is_complete=True),
    "queue": Source(
        lambda: Queue.objects.using(alias()).values_list("name", flat=True), "queue_app.view_queue", is_complete=True
    ),
    "user": Source(lambda: _counted(StatsKind.USER), "queue_app.view_task"),
    "concurrency_key": Source(_keys, "queue_app.view_limit"),
    "capability": Source(_capabilities, "queue_app.view_worker", is_complete=True),
    "zone": Source(available_timezones, is_complete=True),
    "everything": Source(lambda: ["everything"]),
    "probe": Source(lambda: conf.get().all_probes, is_complete=True),
}


#: {kind: how commands and scenarios write the limit of such a name}
LIMITS: Final = {"queue": "queue:{}", "task_type": "type:{}", "concurrency_key": "key:{}"}


class Picker(forms.TextInput):
    """A text field with a list of the names of some kinds that a user may see; ``pattern`` says how it writes them."""

    template_name = "admin/queue_app/includes/picker.html"

    def __init__(self, user: Any, *kinds: str, patterns: Mapping[str, str] = MappingProxyType({})) -> None:
        super().__init__({"class": "vTextField", "autocomplete": "off"})
        self.user, self.kinds, self.patterns = user, kinds, patterns

    def names(self, *kinds: str) -> list[str]:
        """Return the names of ``kinds``, by default of all kinds of the field, sorted."""
        seen = [kind for kind in kinds or self.kinds if self._may_see(SOURCES[kind].permission)]
        return sorted({self.patterns.get(kind, "{}").format(name) for kind in seen for name in SOURCES[kind].names()})

    def _may_see(self, permission: str) -> bool:
        return not permission or bool(self.user.has_perm(permission))

    def get_context(self, name: str, value: Any, attrs: Any) -> dict[str, Any]:
        """Add the list behind the field."""
        names_id = f"{(attrs or {}).get('id', name)}_names"
        context: dict[str, Any] = super().get_context(name, value, {**(attrs or {}), "list": names_id})
        return context | {"names_id": names_id, "names": self.names()[:MOST]}

    def check(self, kind: str, name: str) -> None:
        """Raise ``ValidationError`` for a name that nothing has, with similar names that the user may see."""
        if SOURCES[kind].is_complete and name not in set(SOURCES[kind].names()):
            text = _("Nothing has the name %(name)s.") % {"name": repr(name)}
            written = self.patterns.get(kind, "{}").format(name)
            raise forms.ValidationError(text + suggestion(written, self.names(kind)))
