"""How a worker reaches the queue: through PostgreSQL and Redis, or over HTTP."""
