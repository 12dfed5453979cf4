"""What a run shows while it is disturbed: how long no task ends, and what doctor and explain say meanwhile."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from django.db import Error as DatabaseError, connection

from queue_app.core.reasons import Level
from queue_app.core.states import TERMINAL
from queue_app.diagnose.doctor import examine
from queue_app.diagnose.explain import explain
from queue_app.models import Task

LOOK_SECONDS = 0.05
#: Without the end of a task for so long, doctor and explain are asked.
ASK_AFTER_SECONDS = 3.0
#: A standstill that is this long, and of which neither of them knows, is silent. The watchdog needs 10 s and two looks.
SILENT_AFTER_SECONDS = 14.0


class Watch:
    """Two threads: one looks for ends of tasks, one asks doctor and explain while there are none."""

    def __init__(self, expected: Callable[[], int]) -> None:
        self.said: dict[str, None] = {}  # in the order in which it was said first
        self.silent = 0  # times that nobody said anything
        self.silent_after = SILENT_AFTER_SECONDS
        self._expected = expected
        self._gaps: list[tuple[float, float]] = []
        self._away: list[tuple[float, float]] = []
        self._progress_at = time.monotonic()
        self._ended = -1
        self._is_waiting = False
        self._usual = {finding.check for finding in examine() if finding.level is not Level.OK}
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._loop, args=each, daemon=True) for each in (
            (self._look, LOOK_SECONDS), (self._ask, 1.0),
        )]  # fmt: skip

    def start(self) -> None:
        """Begin to watch."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End the threads; one that waits for a server that hangs is left to itself."""
        self._stop.set()
        for thread in self._threads:
            thread.join(10)

    @contextmanager
    def away(self) -> Iterator[None]:
        """Do not count this time: a server that nothing can do without is away on purpose."""
        began = time.monotonic()
        try:
            yield
        finally:
            self._away.append((began, time.monotonic()))

    @property
    def standstill(self) -> float:
        """The longest time without the end of a task while tasks were left and the servers there."""
        return max((self._counted(*gap) for gap in self._gaps), default=0.0)

    def _counted(self, start: float, end: float) -> float:
        return end - start - sum(max(0.0, min(end, last) - max(start, first)) for first, last in self._away)

    def _loop(self, step: Callable[[], None], seconds: float) -> None:
        while not self._stop.wait(seconds):
            try:
                step()
            except Exception as error:  # noqa: BLE001 - servers are away on purpose
                if isinstance(error, DatabaseError):
                    connection.close()
        connection.close()

    def _look(self) -> None:
        ended = Task.objects.filter(status__in=TERMINAL).exclude(queue="long").count()
        now = time.monotonic()
        if self._is_waiting and ended != self._ended:
            self._gaps.append((self._progress_at, now))
        if ended != self._ended or ended >= self._expected() or not ended:
            self._progress_at = now
        self._ended, self._is_waiting = ended, 0 < ended < self._expected()

    def _ask(self) -> None:
        since = time.monotonic() - self._progress_at
        if since < ASK_AFTER_SECONDS:
            return
        said = [f"doctor: {each.check}" for each in examine() if each.level is not Level.OK]
        said = [each for each in said if each.removeprefix("doctor: ") not in self._usual]
        waiting = Task.objects.filter(status="queued").order_by("queued_at").values_list("id", flat=True).first()
        if waiting is not None:
            said += [f"explain: {reason.code}" for reason in explain(waiting).reasons if reason.blocks]
        self.said |= dict.fromkeys(said)
        self.silent += not said and since > self.silent_after
