"""Grafana from the command line: dashboard files, the macros of their SQL, and the client that installs and compares them.

``dashboard_files`` loads the built JSON, ``macros`` expands what Grafana's ClickHouse plugin would, ``client`` talks to Grafana's HTTP
API. It may import the rest of ``cli`` and the root leaves.
"""
