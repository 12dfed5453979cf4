"""Adaptive limits: the scheduler measures how long tasks run and how often they fail, and sets the limit by that."""
