"""What a queued task costs in the index."""

from bench import Table, fill
from django_redis import get_redis_connection

from queue_app.index import get_index


def run(table: Table) -> None:
    """Compare the server's memory before and after a million tasks, without the capped stream of events."""
    client = get_redis_connection("default")
    n = table.sized(1_000_000)
    before = client.info("memory")["used_memory"]
    fill(n)
    after = client.info("memory")["used_memory"]
    after -= client.memory_usage(get_index().keys.events, samples=0) or 0  # capped: the same at any depth
    table.add(f"index memory per queued task at {n:,}", "≤ 110 bytes", f"{(after - before) / n:.0f} bytes")
