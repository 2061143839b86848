"""Grafana from the command line: the client that installs Legato's dashboards and compares them with what Grafana has.

``client`` sends requests to Grafana's HTTP API. It may import the rest of ``cli``, ``dashboards`` and the root leaves.
"""
