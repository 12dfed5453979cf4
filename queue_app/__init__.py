"""A priority task queue for Django: PostgreSQL rows remember, a Redis index decides who runs next."""
