"""Validate, admit and store new tasks."""
