"""Names of five older queues beside ours: addresses, events and settings. `docs/reference/other-names.md` lists them.

A project that moves from one of them includes ``queue_app.compat.urls`` before ``queue_app.urls``, and makes its
settings with ``queue_app.compat.settings.translated``. Nothing else of the app knows this room.
"""
