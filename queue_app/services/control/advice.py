"""Suggestions: what staff could change, with numbers. Rooms make them (``suggestions``).

Nothing here changes a limit. A dismissal is a record of the audit log, and hides the suggestion for ``DISMISSED``.
"""

from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from django.utils import timezone

from queue_app.core import rooms
from queue_app.exceptions import InvalidTaskData
from queue_app.models import AuditEntry
from queue_app.services.control import audit
from queue_app.sql.database import alias, atomic

#: Maximum number of suggestions at a time.
MOST: Final = 3
DISMISSED: Final = timedelta(days=30)
TARGET: Final = "advice"


@dataclass(frozen=True, slots=True)
class Advice:
    """A suggestion: what was seen, and what to try. ``key`` names it for ``dismiss``."""

    key: str
    text: str
    hint: str
    queue: str = ""


def advice() -> list[Advice]:
    """Return at most ``MOST`` suggestions, without dismissed ones."""
    found = [each for suggest in rooms.each("suggestions") for each in suggest()]
    if not found:
        return []
    entries = AuditEntry.objects.using(alias()).filter(target=TARGET, at__gte=timezone.now() - DISMISSED)
    dismissed = set(entries.filter(target_id__in=[each.key for each in found]).values_list("target_id", flat=True))
    return [each for each in found if each.key not in dismissed][:MOST]


def dismiss(key: str, *, by: str, via: str, reason: str) -> Advice:
    """Hide a suggestion from everybody for ``DISMISSED``; raise ``InvalidTaskData`` if it is not made now."""
    with atomic():
        found = next((each for each in advice() if each.key == key), None)
        if found is None:
            raise InvalidTaskData("key", "This suggestion no longer applies; read the list again.")
        audit.record("advice.dismiss", TARGET, [key], by=by, via=via, after={"text": found.text}, reason=reason)
    return found
