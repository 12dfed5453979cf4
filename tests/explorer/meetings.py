"""The transitions that meet: each with each other, and the triples that are a danger."""

import random
from dataclasses import dataclass
from typing import Final

from tests.explorer.crew import LOOP
from tests.explorer.said_twice import meets
from tests.explorer.transitions import EVERYWHERE, TRANSITIONS
from tests.explorer.ways import STATES as AWAY
from tests.explorer.world import OWN_STATES


@dataclass(frozen=True, slots=True)
class Meeting:
    """Transitions that begin at the same time, and the state in which they find the task."""

    names: tuple[str, ...]
    state: str

    def __str__(self) -> str:
        return f"{' x '.join(self.names)} ({self.state})"


#: Three at once, where the third makes a danger of what two leave behind. The turn passes to the next of them, so both
#: directions are named.
TRIPLES: Final = tuple(
    (names, state)
    for (first, second, third), state in (
        (("reap", "claim", "complete"), "executing"),  # an attempt that lost its task, and its successor
        (("give_back", "reconcile", "claim"), "executing"),  # a release that is late by a reconciliation
        (("complete", "reconcile", "claim"), "executing"),  # a slot that two free
        (("rebuild", "claim", "give_back"), "executing"),  # leases of two generations
        (("claim", "cancel", "promote"), "queued"),  # a lane that a task has left, and rises in
        (("replay", "purge", "reconcile"), "dead"),  # a letter that goes while its task comes back
        (("claim", "claim", "edit_limit"), "queued"),  # the last place of a limit that is copied again
        (("claim", "flush", "rebuild"), "queued"),  # a grant of an index that is gone
        (("claim", "lose_leases", "reconcile"), "queued"),  # a grant of a lease that lost its stamp
        (("claim", "recover", "reconcile"), "proposed"),  # two that abandon one lease
        (("cancel", "retry", "claim"), "queued"),  # a removal that is late by a retry
        (("fail", "due", "claim"), "executing"),  # a retry that is due before its release
        (("overdue", "complete", "claim"), "overdue"),  # two ends of one attempt
        (("requests", "requests", "cancel"), "requested"),  # a request that two carry out
        (("load", "come", "work"), "arrival"),  # a task of a new band, before older ones are loaded
        (("admit_two", "admit_two", "store_one"), "full"),  # the last places, for two that share a lock and one alone
        (("forget", "mend", "crew"), "running"),  # the lease of a grant that was forgotten
        (("forget", "trouble", "crew"), "running"),  # the same, withdrawn by its own worker
        (("forget", "renew", "crew"), "running"),  # a new index, after a grant was forgotten
        (("forget", "lose_second", "crew"), "running"),  # both servers forget the same grant
        (("turn", "pass_time", "crew"), "paced"),  # a start that is late by the refill of its rate
    )
    for names in ((first, second, third), (first, third, second))
)


def meetings() -> list[Meeting]:
    """Return every unordered pair of transitions, in each state in which both mean something."""
    names = list(TRANSITIONS)
    found = []
    for number, one in enumerate(names):
        for other in names[number:]:
            if not meets(one, other) or {one, other} <= LOOP:
                continue
            if "damage_again" in (one, other) and {one, other} <= {"damage_again", "rebuild"}:
                continue  # damage during a rebuild, or right after one, has to wait
            both = [state for state in TRANSITIONS[one].states if state in TRANSITIONS[other].states]
            if not set(EVERYWHERE) - set(both):  # neither is about the task
                both = ["queued", "executing", "proposed", *(state for state in both if state in AWAY)]
            for name, state in OWN_STATES.items():
                if name not in (one, other):
                    both = [each for each in both if each != state]
            found += [Meeting((one, other), state) for state in both]
    return found + [Meeting(names, state) for names, state in TRIPLES]


def sample(seed: int) -> list[Meeting]:
    """Return all meetings in an order of this seed."""
    found = meetings()
    random.Random(seed).shuffle(found)
    return found
