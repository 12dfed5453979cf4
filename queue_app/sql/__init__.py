"""The row side: one module per transition, each a few SQL statements on the task tables.

Every statement that changes a status names the status that it expects, and the attempt
where one is held; so it changes nothing when somebody else was faster. Called by services
only, never by interfaces.
"""
