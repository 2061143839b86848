"""What `legato serve` says about itself at /metrics.

One idea: every part counts what it received, stored, dropped and failed at, by type; sent counts only after success. The registry is
passed in, so two servers in one process (tests) do not meet.
"""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from legato_ingest.definitions import SLO_RESULTS

__all__ = ["Metrics"]

# A service's name comes from outside, and a series once scraped is kept for long: those beyond so many share one name.
_SERVICES_MAX = 200
_OTHER = "(other)"
_SECONDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)


class Metrics:
    """The metrics of one server. Names are documented in docs/reference.md; a test compares."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = registry or CollectorRegistry()
        kept = self.registry
        self.requests = Counter("legato_requests", "OTLP requests by reply", ["status"], registry=kept)
        self.received_bytes = Counter("legato_received_bytes", "Bytes of OTLP bodies received, before decompression", registry=kept)
        self.received_spans = Counter("legato_received_spans", "Spans received", registry=kept)
        self.stored_spans = Counter("legato_stored_spans", "Spans whose rows are in the store", registry=kept)
        self.stored_chunks = Counter("legato_stored_chunks", "Chunks whose rows are in the store", registry=kept)
        self.streams = Counter("legato_streams", "Streams that ended, by the SLO", ["service", "vantage", "result"], registry=kept)
        self._services: set[str] = set()
        self.duplicate_spans = Counter("legato_duplicate_spans", "Spans that the store had already", registry=kept)
        self.ignored_spans = Counter("legato_ignored_spans", "Spans that are no streamed responses", registry=kept)
        self.rejected_spans = Counter("legato_rejected_spans", "Spans refused, by reason", ["reason"], registry=kept)
        self.points = Counter("legato_points", "Data points of metrics by outcome", ["outcome"], registry=kept)
        self.rejected_points = Counter("legato_rejected_points", "Data points refused, by reason", ["reason"], registry=kept)
        self.engine_rows = Counter("legato_engine_rows", "Rows of engines by table and outcome", ["table", "outcome"], registry=kept)
        self.verdicts = Counter("legato_verdicts", "Stalls judged", registry=kept)
        self.sweep_seconds = Histogram("legato_sweep_seconds", "Time of one sweep of the attribution", registry=kept)
        self.rolled_minutes = Counter("legato_rolled_minutes", "Minutes of the rollups computed", registry=kept)
        self.rollup_seconds = Histogram("legato_rollup_seconds", "Time of one run of the rollups", registry=kept)
        self.rollup_lag_seconds = Gauge("legato_rollup_lag_seconds", "How far the rollups are behind what is in the store", registry=kept)
        self.attribution_lag_seconds = Gauge("legato_attribution_lag_seconds", "How far the attribution is behind, likewise", registry=kept)
        self.store_bytes = Gauge("legato_store_bytes", "Bytes on disk, by table", ["table"], registry=kept)
        self.store_rows = Gauge("legato_store_rows", "Rows on disk, older revs among them, by table", ["table"], registry=kept)
        self.errors = Counter("legato_errors", "Failures by stage and type", ["stage", "type"], registry=kept)
        self.commit_seconds = Histogram("legato_commit_seconds", "Time of one insert", buckets=_SECONDS, registry=kept)
        self.request_seconds = Histogram("legato_request_seconds", "From body to reply", buckets=_SECONDS, registry=kept)
        self.queue_bytes = Gauge("legato_queue_bytes", "Bytes of bodies and rows that wait", registry=kept)
        self.queue_bytes_max = Gauge("legato_queue_bytes_max", "At so many bytes waiting, requests get 429", registry=kept)
        self.queries = Counter("legato_queries", "Read queries by result", ["result"], registry=kept)
        self.query_seconds = Histogram("legato_query_seconds", "Time of a read query", buckets=_SECONDS, registry=kept)

    def count_received(self, spans: int, points: int, ignored: int) -> None:
        """A request's spans or points, those that are not stored on purpose among them."""
        if points:
            self.points.labels("received").inc(points)
            self.points.labels("ignored").inc(ignored)
        else:
            self.received_spans.inc(spans)
            self.ignored_spans.inc(ignored)

    def count_results(self, counts: Iterable[tuple[str, str, str, int]]) -> None:
        """Streams that ended and are stored: (service, vantage, result, how many). Called by one thread."""
        for service, vantage, result, streams in counts:
            if service not in self._services and len(self._services) >= _SERVICES_MAX:
                service = _OTHER
            self._services.add(service)
            # All results from the first: a series that begins at its first bad stream has no increase there.
            for each in SLO_RESULTS:
                self.streams.labels(service, vantage, each).inc(streams if each == result else 0)

    def count_stored(self, table: str, stored: int, duplicates: int, refused: int) -> None:
        """What became of the new rows of a table that came beside the streams."""
        outcomes = {"stored": stored, "duplicate": duplicates}
        for outcome, rows in outcomes.items():
            if table == "node_samples":
                self.points.labels(outcome).inc(rows)
            else:
                self.engine_rows.labels(table, outcome).inc(rows)
        (self.rejected_points if table == "node_samples" else self.rejected_spans).labels("store_refused").inc(refused)
