"""Detect dead workers and a stale index, and repair what they leave."""
