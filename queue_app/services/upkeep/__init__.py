"""Periodic jobs: due tasks, promotion, statistics, purge."""
