"""Metrics for Prometheus: what is shown (``names``), from which figures, and as which text."""
