"""Metrics for Prometheus. Needs the extra ``prometheus``; nothing else in the app imports its library."""
