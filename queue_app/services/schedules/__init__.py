"""Schedules: declare, edit, run and show them."""
