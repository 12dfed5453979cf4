"""Say what is wrong and what to do: one registry of reasons, which every door reads."""
