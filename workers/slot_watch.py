"""Measure a worker that adapts its number of slots: 25 samples and one decision (``auto_slots.step``) a second."""

import os
import time
from collections.abc import Callable
from typing import Final

from queue_app.workers.auto_slots import Seen, SlotRange, SlotState, step
from queue_app.workers.lifecycle import essential_thread
from queue_app.workers.pools.base import Pool
from queue_app.workers.resources import CpuClock, cores, memory, resident_bytes

SAMPLE_SECONDS: Final = 0.04
STEP_SECONDS: Final = 1.0


class AutoSlots:
    """Measures the worker, and calls ``on_change`` when ``slots`` has changed."""

    def __init__(  # noqa: PLR0913, PLR0917 - what it measures
        self,
        bounds: SlotRange,
        first: int,
        pool: Pool,
        measure: Callable[[], tuple[int, bool]],
        done: Callable[[], int],
        on_change: Callable[[], object],
    ) -> None:
        self.state = SlotState(bounds.clamp(first))
        self._bounds, self._pool, self._measure, self._on_change = bounds, pool, measure, on_change
        self._done, self._known_done = done, 0
        self._cpus, self._cpu = cores(), CpuClock(lambda: pool.pids)
        self._samples: list[tuple[int, bool, float]] = []
        self._began, self._own_memory = time.monotonic(), 0
        self._stopping = False
        self._thread = essential_thread(self._run, "auto-slots")

    @property
    def slots(self) -> int:
        """The number of slots to have now."""
        return self.state.slots

    def start(self) -> None:
        self._own_memory = _resident(self._pool)
        self._thread.start()

    def stop(self) -> None:
        """Let the thread end after its present sample."""
        self._stopping = True

    def _run(self) -> None:
        while not self._stopping:
            self.sample()
            if time.monotonic() - self._began >= STEP_SECONDS:
                self.decide()

    def sample(self) -> None:
        """Take one sample: how late this thread wakes, and what the worker does."""
        late = self._pool.lateness(SAMPLE_SECONDS)
        self._samples.append((*self._measure(), late))

    def decide(self) -> None:
        """Decide from the samples since the last decision."""
        now = time.monotonic()
        seconds, self._began = now - self._began, now
        samples, self._samples = self._samples, []
        used = sum(sample[0] for sample in samples) / len(samples)
        in_use, total = memory()
        done = self._done()
        ended, self._known_done = done - self._known_done, done
        seen = Seen(
            used=used,
            short=sum(sample[1] for sample in samples) / len(samples),
            wanted=self._cpu.since() / seconds,
            late=sum(sample[2] for sample in samples) / len(samples),
            ended=ended,
            memory=in_use / total,
            slot_memory=max(0, _resident(self._pool) - self._own_memory) / max(1.0, used) / total,
        )
        before, self.state = self.state, step(self.state, self._bounds, seen, self._cpus, now)
        if self.state.slots != before.slots:
            self._on_change()


def _resident(pool: Pool) -> int:
    return sum(resident_bytes(pid) or 0 for pid in (os.getpid(), *pool.pids))
