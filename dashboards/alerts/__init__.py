"""The alert rules: their SQL, and the files that Grafana and Prometheus read them from."""
