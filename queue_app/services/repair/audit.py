"""Audit profiles and heads, by which claims find tasks; the reconciler compares the tasks themselves.

Every script leaves them in agreement with the lanes. So a difference was made from outside: a deleted key, junk, an old
copy. It is not repaired piece by piece: a new generation replaces the index.
"""

from dataclasses import dataclass, field

from queue_app.exceptions import IndexDamaged
from queue_app.index import Index
from queue_app.index.calls import QUEUES

#: Calls of the script in one step; each looks at up to 300 lanes, or 100 queues.
CALLS = 20


@dataclass(slots=True)
class Audit:
    """Remembers how far the audit has come."""

    generation: int = -1
    known: set[str] = field(default_factory=set)  # profiles of the last step; a new one's heads may not be complete yet
    left: list[tuple[str, str]] = field(default_factory=list)  # profiles and queues that this pass has yet to look at
    cursor: int = 0

    def step(self, index: Index) -> None:
        """Look at the next part; raise ``IndexDamaged`` if it is wrong."""
        generation, profiles = index.profiles()
        if generation.state != "ready":
            profiles = {}
        known = self.known & set(profiles) if generation.number == self.generation else set()
        self.generation, self.known = generation.number, set(profiles)
        for profile, is_intact in profiles.items():
            if not is_intact:
                raise IndexDamaged(f"The profile {profile!r} is incomplete.")
        if not self.left or self.left[-1][0] not in known:
            self.left, self.cursor = [(profile, queue) for profile in sorted(known) for queue in index.queues()], 0
        for _ in range(CALLS):
            if not self.left:
                break
            profile = self.left[-1][0]
            queues = [queue for of, queue in self.left[: -QUEUES - 1 : -1] if of == profile]
            done, self.cursor, queue, wrong = index.audit(profile, queues, self.cursor)
            if wrong:
                raise IndexDamaged(f"The heads of profile {profile} are wrong for the queue {queue!r}: {wrong}.")
            del self.left[len(self.left) - done :]
