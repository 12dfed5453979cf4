"""What only a person can mend: task types that fail now, answers that tasks wait for, dead letters that come.

The cost is bounded by the constants here, however many tasks there are.
"""

import uuid
from datetime import datetime
from typing import Final, NamedTuple

from queue_app.sql.database import WITHOUT_JIT, fetch_all, fetch_together

#: Number of the last failed attempts, and of the last completed tasks, that are compared.
MAX_FAILED: Final = 2_000
MAX_COMPLETED: Final = 20_000
#: Failed attempts are of one trouble if no more than this lies between them; a share is that of the last so long.
GAP_SECONDS: Final = 60.0
#: A trouble after which nothing of the type completed is reported for so long.
REMEMBERED_SECONDS: Final = 900.0
#: Number at which the tasks that wait for an answer, and the dead letters of a day, are no longer counted.
MAX_WAITING: Final = 1_000
MAX_LETTERS: Final = 10_000
#: Number of characters of a message that are read.
MESSAGE_LENGTH: Final = 2_000
#: Maximum number of rows of an answer.
LISTED: Final = 5

_FAILING: Final = f"""
WITH last AS MATERIALIZED (
    SELECT id, task_id, finished_at, exception_class FROM queue_app_taskattempt ORDER BY id DESC LIMIT {MAX_FAILED}
), failed AS MATERIALIZED (
    SELECT t.task_type, last.*,
        last.finished_at - lag(last.finished_at) OVER (PARTITION BY t.task_type ORDER BY last.finished_at) AS gap
    FROM last, LATERAL (SELECT task_type FROM queue_app_task WHERE id = last.task_id OFFSET 0) AS t  -- one by one
    WHERE last.finished_at > statement_timestamp() - make_interval(secs => {REMEMBERED_SECONDS})
), trouble AS MATERIALIZED (
    SELECT *, GREATEST(since, until - make_interval(secs => {GAP_SECONDS})) AS begin FROM (
        SELECT task_type, max(finished_at) AS until,
            max(finished_at) FILTER (WHERE gap IS NULL OR gap > make_interval(secs => {GAP_SECONDS})) AS since
        FROM failed GROUP BY task_type
    ) AS spans
), causes AS (
    SELECT task_type, exception_class, count(*) AS number, max(failed.id) AS attempt_id
    FROM trouble JOIN failed USING (task_type) WHERE finished_at >= begin GROUP BY 1, 2
), top AS (
    SELECT DISTINCT ON (task_type) *, sum(number) OVER (PARTITION BY task_type)::bigint AS failures
    FROM causes ORDER BY task_type, number DESC, exception_class
), completed AS (
    SELECT task_type, count(*) AS number, max(finished_at) AS last
    FROM trouble JOIN (
        SELECT task_type, finished_at FROM queue_app_task
        WHERE status = 'completed' AND finished_at >= (SELECT min(begin) FROM trouble)
        ORDER BY finished_at DESC LIMIT {MAX_COMPLETED}
    ) AS task USING (task_type) WHERE finished_at >= begin GROUP BY task_type
)
SELECT task_type, failures, COALESCE(completed.number, 0), begin, until, since,
    since = (SELECT min(finished_at) FROM last) AND (SELECT count(*) FROM last) = {MAX_FAILED},
    top.exception_class, top.number, attempt.task_id, left(attempt.message, {MESSAGE_LENGTH})
FROM trouble JOIN top USING (task_type) LEFT JOIN completed USING (task_type)
    JOIN queue_app_taskattempt AS attempt ON attempt.id = top.attempt_id
WHERE until > statement_timestamp() - make_interval(secs => {GAP_SECONDS}) OR completed.last IS NULL
    OR completed.last <= until
ORDER BY failures DESC, task_type
"""
_BEFORE: Final = """
SELECT name, sum(failures)::float8 / NULLIF(sum(completed + failures), 0) FROM queue_app_taskstats
WHERE kind = 'type' AND name = ANY(%s) AND last_at < %s AND since > statement_timestamp() - interval '1 day'
GROUP BY name
"""
# A blocked task that has run and is not to be queued waits for a signal.
_AWAITED: Final = f"""
SELECT t.id, t.task_type, COALESCE(flow.name, ''), t.concurrency_key, step.signal, step.stored_at, count(*) OVER ()
FROM (
    SELECT id, task_type, workflow_id, concurrency_key FROM queue_app_task
    WHERE status = 'blocked' AND attempt > 0 AND queued_at IS NULL LIMIT {MAX_WAITING}
) AS t JOIN queue_app_stepresult AS step ON step.task_id = t.id
LEFT JOIN queue_app_workflow AS flow ON flow.id = t.workflow_id
WHERE step.done_at IS NULL AND step.signal <> '' ORDER BY step.stored_at, t.id LIMIT {LISTED}
"""
_DIED: Final = f"""
SELECT task_type, count(*) FILTER (WHERE is_recent AND is_open), count(*) FILTER (WHERE NOT is_recent) / 23.0::float8
FROM (
    SELECT task_type, died_at > statement_timestamp() - interval '1 hour' AS is_recent,
        replayed_at IS NULL AND discarded_at IS NULL AS is_open
    FROM queue_app_deadletter WHERE died_at > statement_timestamp() - interval '1 day'
    ORDER BY died_at DESC LIMIT {MAX_LETTERS}
) AS letter GROUP BY task_type ORDER BY 2 DESC, 1
"""


class FailingType(NamedTuple):
    """The attempts of a task type since ``begin``, at most a minute before its last failure, and the top cause."""

    task_type: str
    failed: int
    completed: int
    begin: datetime
    until: datetime  # its last failure
    since: datetime  # the first failure of this trouble
    is_older: bool  # it began before the failures that were read
    exception_class: str
    number: int  # of failures with this cause
    task_id: uuid.UUID  # the last task with it, and the message of that
    message: str

    @property
    def share(self) -> float:
        """The failed ones among the attempts, from 0 to 1."""
        return self.failed / (self.failed + self.completed)


class AwaitedAnswer(NamedTuple):
    """A task that waits for a signal; ``number`` tasks wait for one."""

    task_id: uuid.UUID
    task_type: str
    workflow: str  # its name; empty: none
    key: str  # its concurrency key; empty: none
    signal: str
    since: datetime
    number: int


class Deaths(NamedTuple):
    """Open dead letters of a task type of the last hour, and the mean of an hour of the day before."""

    task_type: str
    number: int
    before: float


def failing() -> list[FailingType]:
    """Return the task types whose last attempts failed, some or all; the most failures first."""
    return [FailingType(*row) for row in fetch_together(WITHOUT_JIT, (_FAILING, ()))]


def failed_before(names: list[str], begin: datetime) -> dict[str, float | None]:
    """Return the share of failed attempts in the day before ``begin``; types that did not run are missing."""
    return dict(fetch_all(_BEFORE, [names, begin])) if names else {}


def awaited_answers() -> list[AwaitedAnswer]:
    """Return tasks that wait for a signal, such as an approval, the longest wait first."""
    return [AwaitedAnswer(*row) for row in fetch_all(_AWAITED)]


def deaths() -> list[Deaths]:
    """Return the task types of the dead letters of the last day, the most of the last hour first."""
    return [Deaths(*row) for row in fetch_all(_DIED)]
