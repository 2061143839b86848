"""What the agent tells about itself, for Prometheus: received, sent, dropped, and errors by type.

One idea: one object holds every metric in a registry of its own, so that each test has its own. It serves nothing unless asked.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, start_http_server

__all__ = ["Metrics"]


class Metrics:
    """The agent's counters. ``serve`` opens a loopback port for them."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self.received = Counter("legato_agent_received_records", "Records received, by kind", ["kind"], registry=registry)
        self.bad = Counter("legato_agent_bad_datagrams", "Datagrams that were skipped, by reason", ["reason"], registry=registry)
        self.lost = Counter("legato_agent_lost_datagrams", "Datagrams that a plugin could not send, as it tells", registry=registry)
        self.sent = Counter("legato_agent_sent_records", "Records acknowledged by the receiver, by kind", ["kind"], registry=registry)
        self.dropped = Counter("legato_agent_dropped_records", "Records given up, by reason", ["kind", "reason"], registry=registry)
        self.errors = Counter("legato_agent_send_errors", "Attempts to send that failed, by type", ["type"], registry=registry)
        self.queue_bytes = Gauge("legato_agent_queue_bytes", "Bytes of flushes that wait to be sent", registry=registry)
        self.engines = Gauge("legato_agent_engines", "Engines that have told of steps lately", registry=registry)
        self.collector_up = Gauge("legato_agent_collector_up", "Whether its last round went well", ["collector"], registry=registry)
        self.collector_duration = Gauge(
            "legato_agent_collector_duration_seconds", "How long its last round took", ["collector"], registry=registry
        )
        self.collector_errors = Counter(
            "legato_agent_collector_errors", "Rounds that failed, by type", ["collector", "type"], registry=registry
        )

    def serve(self, port: int) -> None:
        """Answer /metrics on loopback. Raises ``OSError`` when the port is taken."""
        start_http_server(port, addr="127.0.0.1", registry=self.registry)
