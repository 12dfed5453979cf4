"""Actions on many tasks, requested by staff and carried out in bounded steps."""
