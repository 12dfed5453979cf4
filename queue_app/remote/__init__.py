"""Workers over HTTP: they need a token, and no access to PostgreSQL and Redis."""
