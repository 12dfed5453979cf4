"""Dismiss suggestions of the overview and the doctor."""

from queue_app.exceptions import InvalidTaskData
from queue_app.services.control import audit
from queue_app.services.read.advice import TARGET, Advice, advice
from queue_app.sql.database import atomic


def dismiss(key: str, *, by: str, via: str, reason: str) -> Advice:
    """Hide a suggestion from everybody for ``DISMISSED``; raise ``InvalidTaskData`` if it is not made now."""
    with atomic():
        found = next((each for each in advice() if each.key == key), None)
        if found is None:
            raise InvalidTaskData("key", "This suggestion no longer applies; read the list again.")
        audit.record("advice.dismiss", TARGET, [key], by=by, via=via, after={"text": found.text}, reason=reason)
    return found
