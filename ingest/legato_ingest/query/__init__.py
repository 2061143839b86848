"""The read endpoint: ClickHouse's HTTP interface, read-only, with a guard that decides which statements run.

It offers ``app.create_app``; ``sql_guard.Guard`` checks each statement twice, by its text and by its syntax tree. It may import
``storage`` (to run statements on a read-only handle), ``auth`` and the root leaves, and it never writes.
"""
