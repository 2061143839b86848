"""Legato's Grafana dashboards and alert rules as code: `python -m dashboards` writes the files that Grafana reads."""
