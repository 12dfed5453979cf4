"""Signals of the services; ``queue_app.telemetry`` turns them into log lines.

A signal is sent once the rows are committed, with structured fields only.
"""

from django.dispatch import Signal

#: One attempt failed and its row was written. ``outcome``: ``Outcome``; ``status``: ``Status``, ``None`` if only the
#: server of a remote worker knows it; ``retry_in``: seconds until the retry, or ``None``.
attempt_failed = Signal()
#: Tasks became dead letters because too many workers died while running them. ``tasks``: list of ``TaskRef``.
tasks_crash_looped = Signal()
#: The index was rebuilt from the rows. ``generation``, ``tasks``, ``leases``: int, ``seconds``: float.
index_rebuilt = Signal()
#: The index cannot be reached. ``operation``: str, ``error``: ``IndexUnavailable``.
index_unreachable = Signal()
#: The index is damaged, or work stands still, so it is rebuilt. ``because``: str.
index_condemned = Signal()
#: Work stands still although nothing prevents it. ``kind``, ``subject``, ``text``: str (``diagnose.stalls``).
stalled = Signal()
#: The watchdog acted against stalls. ``step``: str.
stall_acted = Signal()
#: A stall is over. ``kind``, ``subject``: str, ``seconds``: float.
stall_ended = Signal()
#: The reconciler repaired the index. ``kind``: str, ``count``: int.
index_repaired = Signal()
#: Tasks run again because their worker died. ``tasks``: list of ``TaskRef``.
tasks_orphaned = Signal()
#: A worker was found dead. ``worker_id``: UUID, ``name``: str.
worker_reaped = Signal()
#: A pause ended at its set time. ``what``: str, such as "the queue mail".
resumed_by_itself = Signal()
#: Dead letters were replayed. ``count``: int, ``by``: str, ``operation_id``: UUID or None.
dead_letters_replayed = Signal()
#: Dead letters were discarded. ``count``: int, ``by``, ``reason``: str.
dead_letters_discarded = Signal()
#: An action on many tasks or dead letters ended. ``operation``: ``Operation``.
operation_ended = Signal()
#: Waiting tasks were promoted. ``steps``: {(from, to): int}; ``complete``: bool, false if the next run has more.
tasks_promoted = Signal()
#: Stale tasks expired. ``queue``: str, ``count``: int.
tasks_expired = Signal()
