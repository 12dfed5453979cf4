"""Read-only use cases: lists, one task, statistics, explanations, health."""
