"""SQL statements on the task tables, one module for each transition or purpose. Only services call them.

Every statement that changes a status names the status it expects, and the attempt if a worker holds the
task, so it changes nothing when another process was faster.
"""
