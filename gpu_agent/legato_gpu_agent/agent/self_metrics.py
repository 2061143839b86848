"""The agent's own metrics for Prometheus: records received, sent and dropped, and errors by type.

One object holds all metrics in its own registry, so tests do not share them. The endpoint is off unless a port is set.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, start_http_server

__all__ = ["SelfMetrics"]


class SelfMetrics:
    """The metrics of one agent. ``serve`` opens an endpoint for them on loopback."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self.received = Counter("legato_agent_received_records", "Records received from engines, by kind", ["kind"], registry=registry)
        self.bad = Counter("legato_agent_bad_datagrams", "Datagrams rejected, by reason", ["reason"], registry=registry)
        self.lost = Counter("legato_agent_lost_datagrams", "Datagrams that plugins and publishers report as lost", registry=registry)
        self.sent = Counter("legato_agent_sent_records", "Records acknowledged by the receiver, by kind", ["kind"], registry=registry)
        self.dropped = Counter("legato_agent_dropped_records", "Records dropped, by kind and reason", ["kind", "reason"], registry=registry)
        self.errors = Counter("legato_agent_send_errors", "Failed attempts to send, by type", ["type"], registry=registry)
        self.queue_bytes = Gauge("legato_agent_queue_bytes", "Bytes of flushes waiting to be sent", registry=registry)
        self.engines = Gauge("legato_agent_engines", "Engines with steps in the last 10 minutes", registry=registry)
        self.collector_up = Gauge(
            "legato_agent_collector_up", "1 if the collector's last round succeeded, else 0", ["collector"], registry=registry
        )
        self.collector_duration = Gauge(
            "legato_agent_collector_duration_seconds", "Duration of the collector's last round", ["collector"], registry=registry
        )
        self.collector_errors = Counter(
            "legato_agent_collector_errors", "Failed rounds of a collector, by type", ["collector", "type"], registry=registry
        )

    def dropped_text(self) -> str:
        """Return how many records of each kind were dropped, with the reasons, such as "3 step (refused)"; '' for none."""
        kinds: dict[str, dict[str, float]] = {}
        for sample in (each for family in self.dropped.collect() for each in family.samples):
            if sample.name.endswith("_total") and sample.value:
                kinds.setdefault(sample.labels["kind"], {})[sample.labels["reason"]] = sample.value
        return ", ".join(f"{sum(reasons.values()):.0f} {kind} ({', '.join(reasons)})" for kind, reasons in kinds.items())

    def serve(self, port: int) -> None:
        """Serve /metrics on loopback. Raises ``OSError`` if the port is in use."""
        start_http_server(port, addr="127.0.0.1", registry=self.registry)
