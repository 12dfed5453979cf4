"""Phrases that the sentences of ``explain`` and ``waits`` share."""

from collections.abc import Sequence

from queue_app.core.sentence import listed, say


def status_name(status: str) -> str:
    """Return the name of a state for people; ``dashboard.words`` has the texts."""
    return say(status.replace("_", " "))


def subject(scope: str, name: str) -> str:
    """Return what a limit or a pause is about."""
    match scope:
        case "everything":
            return say("Everything")
        case "queue":
            return say("The queue %(name)s", name=name)
        case "type":
            return say("The task type %(name)s", name=name)
        case "key":
            return say("The key %(name)s", name=name)
    return say("The user %(name)s in this queue", name=name)


def by(person: str) -> str:
    """Return who did it, to be put behind a verb; empty if unknown."""
    return say(" by %(by)s", by=person) if person else ""


def because(reason: str) -> str:
    """Return the end of a sentence, with the reason that a person gave."""
    return f": {reason.rstrip('.')}." if reason else "."


def at_limit(what: str, used: int, most: int) -> str:
    """Return that a limit is reached."""
    return say("%(what)s is at its limit: %(used)s of at most %(most)s run.", what=what, used=used, most=most)


def all_of(parts: Sequence[str]) -> str:
    """Return texts with an "and" before the last one."""
    return say("%(first)s and %(last)s", first=listed(parts[:-1]), last=parts[-1]) if len(parts) > 1 else parts[0]
