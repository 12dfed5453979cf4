"""The rule that makes tasks unique: which calls are equal, how long a task blocks them, and what a repetition does."""

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, Literal

from queue_app.core.sentence import listed, sentence
from queue_app.core.signatures import taken_by
from queue_app.core.states import PENDING, Status
from queue_app.exceptions import InvalidTaskData, suggestion

type Conflict = Literal["keep", "raise", "replace", "latest"]

CONFLICTS: Final = ("keep", "raise", "replace", "latest")
#: States in which the arguments of a task can still be replaced.
REPLACEABLE: Final = frozenset(PENDING - {Status.EXECUTING})
#: Family of the concurrency keys of ``latest``; a row of limits lets one task of each key run.
FAMILY: Final = "unique"
LENGTH: Final = 32
MAX_SECONDS: Final = 366 * 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Unique:
    """Store one task for equal calls: while it exists, a repetition of the call stores no second one.

    - ``by``: names of the parameters that must be equal; by default all, ``()`` for none;
    - ``per_user``, ``per_queue``: only tasks of the same user or queue are the same;
    - ``states``: pending states in which the task blocks repetitions; by default all of them, and for ``replace``,
      ``latest`` and ``debounce`` those before it runs, because a running task cannot take new arguments;
    - ``within``: it also blocks them for these seconds after it was enqueued, unless it ended without success;
    - ``on_conflict``: what a repetition does. ``keep`` returns the existing task, ``raise`` raises
      ``UniqueConflict``, ``replace`` gives the existing task the new arguments, and ``latest`` does the same and
      also lets only one such task run at a time: one runs, one waits with the newest arguments;
    - ``debounce``: seconds that a task waits; each repetition replaces the arguments and restarts the wait;
    - ``max_wait``: maximum seconds that repetitions can delay a task with ``debounce``.

    Raises ``InvalidTaskData`` for a rule that makes no sense.
    """

    by: Sequence[str] | None = None
    per_user: bool = False
    per_queue: bool = False
    states: Sequence[str] | None = None
    within: float | timedelta | None = None
    on_conflict: Conflict = "keep"
    debounce: float | timedelta | None = None
    max_wait: float | timedelta | None = None

    def __post_init__(self) -> None:
        if self.by is not None:
            object.__setattr__(self, "by", _words("by", self.by))
        for name in ("within", "debounce", "max_wait"):
            object.__setattr__(self, name, _seconds(name, getattr(self, name)))
        if self.on_conflict not in CONFLICTS:
            raise _refused(f"on_conflict is one of {', '.join(CONFLICTS)}, not {self.on_conflict!r:.40}.")
        if self.debounce is not None and self.on_conflict == "keep":
            object.__setattr__(self, "on_conflict", "replace")
        if self.debounce is not None and self.on_conflict == "raise":
            raise _refused("debounce replaces the task that waits, so on_conflict cannot be 'raise'.")
        most, least = self.seconds("max_wait"), self.seconds("debounce")
        if most is not None and (least is None or most < least):
            raise _refused("max_wait limits debounce: give both, and max_wait as the longer one.")
        object.__setattr__(self, "states", self._checked_states())

    def _checked_states(self) -> tuple[str, ...]:
        possible = sorted(state.value for state in (REPLACEABLE if self.replaces else PENDING))
        states = possible if self.states is None else _words("states", self.states)
        for state in states:
            if state not in possible:
                hint = suggestion(state, possible)
                raise _refused(f"states may name {', '.join(possible)}, not {state!r:.40}.{hint}")
        if not states and self.within is None:
            raise _refused("without states and without within, the rule never applies.")
        return tuple(sorted(set(states)))

    def seconds(self, name: Literal["within", "debounce", "max_wait"]) -> float | None:
        """Return a time in seconds."""
        found: float | None = getattr(self, name)
        return found

    @property
    def replaces(self) -> bool:
        """Whether a repetition replaces the arguments."""
        return self.on_conflict in {"replace", "latest"}

    @property
    def words(self) -> str:
        """The rule in words."""
        same: list[str] = [
            *([sentence("user")] if self.per_user else []),
            *([sentence("queue")] if self.per_queue else []),
        ]
        same += [sentence("arguments")] if self.by is None else list(self.by)
        text = sentence("one for the same %(names)s", names=listed(same)) if same else sentence("one of this type")
        states = frozenset(map(Status, self.states or ()))
        if states == PENDING:
            text = sentence("%(one)s until it has ended", one=text)
        elif states == REPLACEABLE:
            text = sentence("%(one)s until it starts", one=text)
        elif states:
            text = sentence("%(one)s while it is %(states)s", one=text, states=" or ".join(self.states or ()))
        within = self.seconds("within")
        if within is None:
            return text
        if states:
            return sentence("%(one)s, for %(seconds)s s after it was enqueued", one=text, seconds=within)
        return sentence("%(one)s for %(seconds)s s after it was enqueued", one=text, seconds=within)

    def check(self, function: Callable[..., Any], *, takes_context: bool) -> None:
        """Raise ``InvalidTaskData`` unless ``by`` names parameters of the function."""
        taken = taken_by(function, takes_context=takes_context)
        known = [] if taken is None else list(taken.signature.parameters)
        for name in self.by or ():
            if name not in known:
                hint = suggestion(name, known)
                raise _refused(f"by names {name!r}, which is no parameter of {function.__qualname__}.{hint}")

    def key(  # noqa: PLR0913 - by name
        self,
        task_type: str,
        function: Callable[..., Any] | None,
        args: Sequence[Any],
        parameters: dict[str, Any],
        *,
        takes_context: bool,
        user: str,
        queue: str,
    ) -> str:
        """Return the key of a call: 32 hex digits, the same for positional and for named arguments."""
        taken = None if function is None else taken_by(function, takes_context=takes_context)
        if taken is None:
            values: dict[str, Any] = {"args": list(args), "parameters": parameters}
        else:
            bound = taken.signature.bind(*args, **parameters)
            bound.apply_defaults()
            values = bound.arguments
        chosen = values if self.by is None else {name: values.get(name) for name in self.by}
        parts = [task_type, user if self.per_user else None, queue if self.per_queue else None, chosen]
        text = json.dumps(parts, sort_keys=True, default=lambda value: type(value).__qualname__)
        return hashlib.blake2b(text.encode(), digest_size=LENGTH // 2).hexdigest()


LATEST_HAS_A_KEY: Final = "on_conflict='latest' makes a concurrency key of its own; leave concurrency_key out."


def rule_of(given: Any) -> Unique | None:
    """Return the rule that the option ``unique`` stands for; raise ``InvalidTaskData`` for other values."""
    if given is None or given is False:
        return None
    if given is True:
        return Unique()
    if isinstance(given, Unique):
        return given
    raise _refused(f"unique is True, None or queue_app.Unique(…), not {given!r:.60}.")


def _refused(why: str) -> InvalidTaskData:
    return InvalidTaskData("unique", f"unique: {why}")


def _words(name: str, given: Any) -> tuple[str, ...]:
    if isinstance(given, list | tuple | set | frozenset) and all(isinstance(word, str) and word for word in given):
        return tuple(sorted(str(word) for word in given))
    example = "queued" if name == "states" else "order_id"
    raise _refused(f'{name} must be a list of names such as ["{example}"], not {given!r:.60}.')


def _seconds(name: str, given: Any) -> float | None:
    if given is None:
        return None
    seconds = given.total_seconds() if isinstance(given, timedelta) else given
    if type(seconds) not in (int, float) or not 0 < seconds <= MAX_SECONDS:  # false for NaN too
        raise _refused(f"{name} must be more than 0 and at most {MAX_SECONDS:.0f} seconds, not {given!r:.40}.")
    return float(seconds)
