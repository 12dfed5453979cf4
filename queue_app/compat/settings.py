"""Settings and priorities under the names of older queues. The settings of a project may import this module."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

#: Their name -> our section and key.
NAMES: Final[Mapping[str, tuple[str, str]]] = {
    "max_queue_size": ("ADMISSION", "MAX_LENGTH"),
    "max_executions_per_user": ("ADMISSION", "MAX_PENDING_PER_USER"),
    "stale_timeout_seconds": ("ADMISSION", "STALE_SECONDS"),
    "executor.queue.max_queue_length": ("ADMISSION", "MAX_LENGTH"),
    "executor.queue.queue_timeout_seconds": ("ADMISSION", "STALE_SECONDS"),
    "executor.queue.enable_metrics": ("METRICS", "ENABLED"),
    "starvation_prevention.promotion_interval_seconds": ("SCHEDULER", "MAINTENANCE_SECONDS"),
    "starvation_prevention.promotion_batch_size": ("SCHEDULER", "PROMOTE_BATCH"),
}
#: Parts of a configuration of priorities that are rows here: ``set_priorities`` stores them.
ROWS: Final = (
    "high", "medium", "low", "starvation_prevention.low_to_medium_seconds",
    "starvation_prevention.medium_to_high_seconds",
)  # fmt: skip
_ATTUNE: Final = "ATTUNE__"


def translated(given: Mapping[str, Any], environ: Mapping[str, str] | None = None) -> dict[str, dict[str, Any]]:
    """Return the sections of ``TASKQUEUE`` for nested settings of theirs; raise ``ValueError`` for an unknown one.

    Names in ``environ`` such as ``ATTUNE__EXECUTOR__QUEUE__MAX_QUEUE_LENGTH`` win.
    """
    flat = dict(_flat(given))
    for name, text in (environ or {}).items():
        theirs = name.removeprefix(_ATTUNE).lower().replace("__", ".")
        if name.startswith(_ATTUNE) and theirs in NAMES:
            flat[theirs] = text if theirs.endswith("enable_metrics") else float(text)
    found: dict[str, dict[str, Any]] = {}
    for name, value in flat.items():
        if name in NAMES:
            section, key = NAMES[name]
            found.setdefault(section, {})[key] = _like(key, value)
        elif name not in ROWS and name.partition(".")[0] not in ROWS:
            raise ValueError(f"There is no setting {name!r} to translate. Known are {', '.join([*NAMES, *ROWS])}.")
    return found


def set_priorities(given: Mapping[str, Mapping[str, Any]], *, by: str = "") -> None:
    """Store retries, timeouts and ages of promotion of the bands ``high``, ``medium`` and ``low``."""
    from queue_app.core.priorities import Band, parse_band  # noqa: PLC0415 - settings are read before models
    from queue_app.services.control.queues import edit_policy  # noqa: PLC0415 - the same

    ages = given.get("starvation_prevention", {})
    changes: dict[Band, dict[str, Any]] = {
        parse_band(name): dict(values) for name, values in given.items() if name != "starvation_prevention"
    }
    for band, name in ((Band.LOW, "low_to_medium_seconds"), (Band.NORMAL, "medium_to_high_seconds")):
        if name in ages:
            changes.setdefault(band, {})["promote_after_seconds"] = ages[name]
    for band, values in changes.items():
        edit_policy(band, values, version=None, by=by)


def _flat(given: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    return [
        pair
        for name, value in given.items()
        for pair in (_flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else [(f"{prefix}{name}", value)])
    ]


def _like(key: str, value: Any) -> Any:
    """Return a value of the kind that our setting has."""
    if key == "ENABLED":
        return str(value).lower() in {"true", "1", "yes", "on"}
    return float(value) if key.endswith("SECONDS") else int(value)
