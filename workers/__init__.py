"""The worker runtime: claims tasks, runs them, reports how they ended."""
