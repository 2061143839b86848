"""What `legato serve` says about itself at /metrics.

One idea: every part counts what it received, stored, dropped and failed at, by type; sent counts only after success. The registry is
passed in, so two servers in one process (tests) do not meet.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

__all__ = ["Metrics"]

_SECONDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)


class Metrics:
    """The metrics of one server. Names are documented in docs/reference.md; a test compares."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = registry or CollectorRegistry()
        with_registry = {"registry": self.registry}
        self.requests = Counter("legato_requests", "OTLP requests by reply", ["status"], **with_registry)
        self.received_bytes = Counter("legato_received_bytes", "Bytes of OTLP bodies received, before decompression", **with_registry)
        self.received_spans = Counter("legato_received_spans", "Spans received", **with_registry)
        self.stored_spans = Counter("legato_stored_spans", "Spans whose rows are in the store", **with_registry)
        self.stored_chunks = Counter("legato_stored_chunks", "Chunks whose rows are in the store", **with_registry)
        self.duplicate_spans = Counter("legato_duplicate_spans", "Spans that the store had already", **with_registry)
        self.ignored_spans = Counter("legato_ignored_spans", "Spans that are no streamed responses", **with_registry)
        self.rejected_spans = Counter("legato_rejected_spans", "Spans refused, by reason", ["reason"], **with_registry)
        self.errors = Counter("legato_errors", "Failures by stage and type", ["stage", "type"], **with_registry)
        self.commit_seconds = Histogram("legato_commit_seconds", "Time of one insert", buckets=_SECONDS, **with_registry)
        self.request_seconds = Histogram("legato_request_seconds", "From body to reply", buckets=_SECONDS, **with_registry)
        self.queue_bytes = Gauge("legato_queue_bytes", "Bytes of bodies and rows that wait", **with_registry)
        self.queries = Counter("legato_queries", "Read queries by result", ["result"], **with_registry)
        self.query_seconds = Histogram("legato_query_seconds", "Time of a read query", buckets=_SECONDS, **with_registry)
