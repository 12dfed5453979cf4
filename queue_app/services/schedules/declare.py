"""Store the schedules that the code declares.

While a deployment replaces the code, two versions of the declarations run side by side. Each scheduler reports its own
every minute. The version that appeared last is in force for as long as schedulers report it; a roll back to the older
one takes effect once the newer one is no longer reported.

A value that staff have changed stays as they left it, until they give it back. A schedule that the code no longer
declares is paused, never deleted.
"""

import hashlib
import json
import logging
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Final

from django.utils import timezone

from queue_app import schedules
from queue_app.exceptions import InvalidTaskData
from queue_app.models import MaintenanceJob, Schedule
from queue_app.schedules import Declaration
from queue_app.services.control.passed_ticks import settle_pause
from queue_app.services.schedules.edit import (
    FIELDS,
    WHEN,
    from_json,
    plan_ahead,
    save,
    set_values,
    to_json,
    values_of,
    with_options,
)
from queue_app.services.schedules.tick import finish_due
from queue_app.sql.database import alias, atomic, clock

#: Name of the row that knows the versions of the declarations.
JOB: Final = "schedules"
#: Time after its last report when a version of the declarations counts as gone.
GONE: Final = timedelta(minutes=5)
#: Who paused a schedule that the code no longer declares.
BY: Final = "the code"
NOT_DECLARED: Final = "It is no longer declared in the code."

_log = logging.getLogger("taskqueue")


def synchronise(*, force: bool = False, now: datetime | None = None) -> list[str]:
    """Store the declarations of this process if its version is in force; return the names of what changed.

    With ``force`` this version counts as the newest. An invalid declaration is logged, and its schedule stays as it is.
    """
    found = schedules.declared()
    version = hashlib.sha256(repr(sorted((d.name, _text(d)) for d in found.values())).encode()).hexdigest()[:16]
    with atomic():
        MaintenanceJob.objects.using(alias()).get_or_create(name=JOB)
        known = MaintenanceJob.objects.using(alias()).select_for_update().get(name=JOB)
        now = now or clock()
        is_new = known.progress.get("stored") != version
        if not _is_in_force(known.progress, version, now, force=force):
            known.save(update_fields=["progress"])
            return []
        changed = _store(found, now) if is_new or force else []
        known.progress["stored"] = version
        known.started_at = known.succeeded_at = timezone.now()
        known.done = len(found)
        known.save()
    return changed


def _is_in_force(progress: dict[str, Any], version: str, now: datetime, *, force: bool) -> bool:
    """Report this version, forget those that are gone, and return whether this one appeared last."""
    seen: dict[str, list[str]] = progress.setdefault("versions", {})
    for other in list(seen):
        if datetime.fromisoformat(seen[other][1]) < now - GONE:
            del seen[other]
    first = now.isoformat() if force or version not in seen else seen[version][0]
    seen[version] = [first, now.isoformat()]
    return max(seen, key=lambda each: seen[each][0]) == version


def _store(found: Mapping[str, Declaration], now: datetime) -> list[str]:
    rows = {row.name: row for row in Schedule.objects.using(alias()).select_for_update().order_by("id")}
    changed = []
    for name, declaration in sorted(found.items()):
        try:
            with atomic():
                if _apply(rows.get(name) or Schedule(name=name), declaration, now):
                    changed.append(name)
        except InvalidTaskData as error:
            _log.error("the schedule %s is declared with an invalid %s: %s", name, error.field, error)
    for name, row in sorted(rows.items()):
        if row.declaration is not None and name not in found:
            _retire(row)
            changed.append(name)
    return changed


def _apply(row: Schedule, declaration: Declaration, now: datetime) -> bool:
    """Give a schedule the declared values, but for those that staff have changed; return whether it changed."""
    fresh = Schedule(name=row.name)
    set_values(fresh, with_options(declaration.values))
    wanted = values_of(fresh)
    is_new = row.pk is None
    before, old = values_of(row), row.declaration
    # A schedule that staff made first keeps all its values, which then show as overridden.
    kept = (
        {}
        if is_new
        else {name: before[name] for name in FIELDS if old is None or before[name] != old.get(name, before[name])}
    )
    after = wanted | kept
    if not is_new and old == wanted and after == before and row.paused_by != BY:
        return False
    row.declaration = wanted
    if row.paused and row.paused_by == BY:
        settle_pause(row, now)
        row.paused, row.paused_at, row.paused_by, row.paused_reason, row.resume_at = False, None, "", "", None
    is_moved = not is_new and any(after[name] != before[name] for name in WHEN)
    if is_moved:
        finish_due(row, now)
    set_values(row, from_json(after))
    if is_new or is_moved:
        plan_ahead(row, now)
    save(row, is_new=is_new)
    return True


def _retire(row: Schedule) -> None:
    row.declaration = None
    if not row.paused:
        row.paused, row.paused_at, row.paused_by, row.paused_reason = True, timezone.now(), BY, NOT_DECLARED
    row.save()


def _text(declaration: Declaration) -> str:
    return json.dumps(to_json(declaration.values), sort_keys=True, default=str)
