"""The index as tables of PostgreSQL, for projects without Redis (``INDEX = "rows"``)."""
