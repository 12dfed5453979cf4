"""Workflows: store graphs of tasks, and steer them as a whole; ``services.advance`` queues what waited."""
