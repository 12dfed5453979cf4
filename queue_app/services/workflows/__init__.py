"""Workflows: store graphs of tasks, advance them, steer them as a whole."""
