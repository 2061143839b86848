"""Legato's dashboards as data: the built JSON, its queries, and the macros of their SQL.

``files`` loads the JSON that `python -m dashboards` builds, ``macros`` expands what Grafana and its ClickHouse plugin would. The command
line and the web page use both. The package runs no query and may import the root leaves only.
"""
