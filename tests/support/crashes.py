"""What a crash of PostgreSQL leaves in the rows, done by SQL: commits that did not wait for the disk are undone."""

from django.db import connection, transaction

#: What ``begin_run`` does.
BEGIN_RUN = "UPDATE queue_app_worker SET answered_run = 'before' WHERE answered_run IS NOT NULL"


def forget_claims() -> None:
    """Undo the claims of all executing tasks, and begin another run of PostgreSQL."""
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SET LOCAL session_replication_role = replica")  # the tests' history would refuse it
        cursor.execute(
            "UPDATE queue_app_task SET status = 'queued', attempt = attempt - 1, worker_id = NULL, started_at = NULL,"
            " deadline = NULL, leased_at = NULL WHERE status = 'executing'"
        )
        begin_run()


def begin_run() -> None:
    """Let every worker meet another run of PostgreSQL with its next heartbeat."""
    with connection.cursor() as cursor:
        cursor.execute(BEGIN_RUN)
