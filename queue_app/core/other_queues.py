"""Names of other queues, above all of Celery, and what they are called here: for error messages."""

from typing import Final

#: Names of options in other queues.
OPTIONS: Final = {
    "queue": "queue_name",
    "name": "task_type",
    "bind": "takes_context",
    "default_retry_delay": "retry_delay",
    **dict.fromkeys(("time_limit", "soft_time_limit"), "timeout"),
    **dict.fromkeys(("delay", "countdown", "eta"), "run_after"),
}
#: Options of Celery without a counterpart, and what to do instead.
INSTEAD_OF_OPTIONS: Final = {
    "rate_limit": "Limit its task type: in the admin, or with `manage.py taskqueue limit`.",
    "expires": "Set `stale after` of its queue.",
    **dict.fromkeys(("autoretry_for", "throws"), "Every exception is retried, unless the task raises Discard."),
    **dict.fromkeys(
        ("retry_backoff", "retry_backoff_max", "retry_jitter"),
        "The wait doubles from retry_delay; RETRY in TASKQUEUE has its cap and jitter.",
    ),
    **dict.fromkeys(
        ("acks_late", "reject_on_worker_lost"), "Leave it out: tasks of a dead worker are always queued again."
    ),
    "ignore_result": "Leave it out: RETENTION in TASKQUEUE says how long results are kept.",
    "serializer": "Arguments are JSON; CODECS in TASKQUEUE adds types.",
}
#: Names of methods in other queues.
METHODS: Final = {
    "retry": "raise Retry(after=…)",
    "apply": "call(…)",
    **dict.fromkeys(("s", "si", "signature"), "chain, group or Workflow of queue_app"),
    **dict.fromkeys(("map", "starmap", "chunks"), "default_task_backend.enqueue_many(…)"),
    "request": "takes_context=True: context.attempt, context.task_result.id",
    "delay_on_commit": "enqueue(…) in the transaction",
    "apply_async": "using(…).enqueue(…)",
    "send_with_options": "using(…).enqueue(…)",
    **dict.fromkeys(("delay", "send"), "enqueue(…)"),
}
