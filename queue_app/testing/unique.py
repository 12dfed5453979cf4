"""Unique tasks in memory: the same rules as in rows, by the test's clock."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.utils import timezone

from queue_app import registry
from queue_app.core.states import PENDING, Status, predicate
from queue_app.core.unique import REPLACEABLE, Unique
from queue_app.exceptions import UniqueConflict
from queue_app.registry import AnyTask
from queue_app.testing.stored import StoredCall


@dataclass(frozen=True, slots=True)
class Claim:
    """The unique key of a new call, under its rule."""

    rule: Unique
    key: str
    run_after: datetime | None

    def existing(self, calls: Iterable[StoredCall]) -> StoredCall | None:
        """Return the existing task of the key, preferably one that waits."""
        found = [call for call in calls if call.unique_key == self.key and self._blocks(call)]
        return min(found, key=lambda call: call.status not in REPLACEABLE, default=None)

    def _blocks(self, call: StoredCall) -> bool:
        if call.status in (self.rule.states or ()):
            return True
        within = self.rule.seconds("within")
        return (
            within is not None
            and call.status in PENDING | {Status.COMPLETED}
            and call.created_at > timezone.now() - timedelta(seconds=within)
        )

    def repeat(self, call: StoredCall, task: AnyTask, args: str, kwargs: str, metadata: str | None) -> None:
        """Apply the rule to the existing task."""
        if self.rule.on_conflict == "raise":
            name = f"{registry.type_of(task)} is unique: {self.rule.words}."
            raise UniqueConflict(f"{name} The task {call.id} {predicate(call.status)}.", status=call.status)
        if not (self.rule.replaces and call.status in REPLACEABLE):
            return
        call.args, call.kwargs, call.metadata = args, kwargs, metadata
        if self.rule.debounce is not None and self.run_after is not None:
            most = self.rule.seconds("max_wait")
            end = self.run_after if most is None else call.created_at + timedelta(seconds=most)
            call.status, call.queued_at, call.run_after = Status.SCHEDULED, None, min(self.run_after, end)


def claim_of(task: AnyTask, args: str, kwargs: str) -> Claim | None:
    """Return the claim of a new call (JSON texts), or ``None`` if its task has no rule."""
    rule = getattr(task, "unique", None)
    if rule is None:
        return None
    key = rule.key(
        registry.type_of(task),
        task.func,
        json.loads(args),
        json.loads(kwargs),
        takes_context=task.takes_context,
        user=getattr(task, "user", ""),
        queue=task.queue_name,
    )
    seconds, run_after = rule.seconds("debounce"), task.run_after
    if seconds is not None and run_after is None:
        run_after = timezone.now() + timedelta(seconds=seconds)
    return Claim(rule, key, run_after)
