"""The metrics of `legato serve` at /metrics.

Each stage counts the data that it received, stored and rejected, and its failures by type. The registry is an argument, so two servers in
one process (tests) have separate metrics. docs/reference.md has the same descriptions, which a test compares.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import resource
import time
from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from legato_ingest.definitions import SLO_RESULTS
from legato_ingest.stream_histograms import StreamHistograms

__all__ = ["Metrics"]

# Service names come from emitters, and Prometheus keeps each series for long, so further services share one name.
_SERVICES_MAX = 200
_SCOPES_MAX = 100
_OTHER = "(other)"
_SECONDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)


class _ProcessorTime(Collector):
    """Reads the processor time of the process and its children when the registry is read."""

    def collect(self) -> Iterator[CounterMetricFamily]:
        """Yield the counter."""
        text = "Processor time of legato serve, of the process of an embedded store and of the process that judges streams, in seconds"
        yield CounterMetricFamily("legato_cpu_seconds", text, value=time.process_time() + _children_s())


def _children_s() -> float:
    """Return the processor time of all child processes, ended or not, in seconds. Those that run are known on Linux only."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    total_s = ended.ru_utime + ended.ru_stime
    for listed in pathlib.Path("/proc/self/task").glob("*/children"):
        # A thread or a child may end while it is looked at.
        with contextlib.suppress(OSError):
            for pid in listed.read_text(encoding="ascii").split():
                fields = pathlib.Path("/proc", pid, "stat").read_text(encoding="ascii").rpartition(") ")[2].split()
                total_s += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return total_s


class Metrics:
    """The metrics of one server."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = registry or CollectorRegistry()
        self._services: set[str] = set()
        # Streams that only have a TTFT must not take the names of those that the SLO counts.
        self._histogram_services: set[str] = set()
        self._scopes: set[str] = set()
        self._register_receiving(self.registry)
        self._register_jobs(self.registry)
        self._register_store(self.registry)
        self.registry.register(_ProcessorTime())
        self.stream_histograms = StreamHistograms(lambda service: _bounded(service, self._histogram_services, _SERVICES_MAX))
        self.registry.register(self.stream_histograms)

    def _register_receiving(self, kept: CollectorRegistry) -> None:
        self.requests = Counter(
            "legato_requests",
            "OTLP requests, by status of the reply; for gRPC the HTTP status with the same meaning; 499: the sender closed the connection "
            "within its request",
            ["status"],
            registry=kept,
        )
        self.received_bytes = Counter("legato_received_bytes", "Bytes of OTLP request bodies received, before decompression", registry=kept)
        self.received_spans = Counter("legato_received_spans", "Spans received", registry=kept)
        self.stored_spans = Counter(
            "legato_stored_spans", "Spans of streams that were stored. Duplicates and rejected spans are not included", registry=kept
        )
        self.stored_chunks = Counter("legato_stored_chunks", "Chunks stored", registry=kept)
        self.streams = Counter(
            "legato_streams",
            "Ended streams with a known timeline that were stored, by service, vantage and result: good, gap, error or late. "
            "The limits are those of the stream's objective. Services after the first 200 are counted as (other). "
            "Abandoned streams are not included; they can only be found in the store. A response that several libraries recorded counts "
            "twice if the span of the poorer one came in an earlier request",
            ["service", "vantage", "result"],
            registry=kept,
        )
        self.duplicate_spans = Counter("legato_duplicate_spans", "Spans of streams that were already in the store", registry=kept)
        self.ignored_spans = Counter(
            "legato_ignored_spans",
            "Spans that are neither streamed responses nor engine steps, or of a response that another row has; they are acknowledged "
            "and not stored. By reason and instrumentation scope; scopes after the first 100 are counted as (other)",
            ["reason", "scope"],
            registry=kept,
        )
        self.rejected_spans = Counter("legato_rejected_spans", "Spans rejected, by reason", ["reason"], registry=kept)
        self.points = Counter(
            "legato_points",
            "Data points of metrics, by outcome: received, stored, duplicate, ignored (no recorded value)",
            ["outcome"],
            registry=kept,
        )
        self.rejected_points = Counter("legato_rejected_points", "Data points rejected, by reason", ["reason"], registry=kept)
        self.log_records = Counter(
            "legato_log_records",
            "Log records, by outcome: received, ignored (acknowledged and not stored), rejected",
            ["outcome"],
            registry=kept,
        )
        self.engine_rows = Counter(
            "legato_engine_rows",
            "Rows of engine steps and finished requests, by table and outcome (stored, duplicate)",
            ["table", "outcome"],
            registry=kept,
        )

    def _register_jobs(self, kept: CollectorRegistry) -> None:
        self.verdicts = Counter("legato_verdicts", "Verdicts written", registry=kept)
        self.sweep_seconds = Histogram("legato_sweep_seconds", "Duration of one attribution run", registry=kept)
        self.rolled_minutes = Counter("legato_rolled_minutes", "Minutes of the rollups that were computed", registry=kept)
        self.rollup_seconds = Histogram("legato_rollup_seconds", "Duration of one rollup run", registry=kept)
        self.rollup_lag_seconds = Gauge(
            "legato_rollup_lag_seconds",
            "Seconds between now and the time up to which received rows are rolled up. 0 on an instance without the lease",
            registry=kept,
        )
        self.up = Gauge(
            "legato_up",
            '1 while the process runs, 0 in its last sample of self-monitoring: a process that was stopped is not "silent"',
            registry=kept,
        )
        self.up.set(1)
        self.attribution_lag_seconds = Gauge(
            "legato_attribution_lag_seconds",
            "Seconds between now and the time up to which received streams are attributed, the grace period included, for the tenant that "
            "is most behind. Of several instances on one server each shows its own part, and 0 without one",
            registry=kept,
        )

        self.trace_export_spans = Counter(
            "legato_trace_export_spans",
            "Spans about stalls that were sent to the trace backend, by outcome: exported, rejected (by a partial success), "
            "refused (with their request)",
            ["outcome"],
            registry=kept,
        )
        self.trace_export_lag_seconds = Gauge(
            "legato_trace_export_lag_seconds",
            "Seconds between now and the time up to which received streams have their stalls exported, less the time to settle, "
            "for the tenant that is most behind. 0 without an endpoint, and on an instance without the lease",
            registry=kept,
        )

    def _register_store(self, kept: CollectorRegistry) -> None:
        self.store_bytes = Gauge("legato_store_bytes", "Bytes of the store on disk, by table", ["table"], registry=kept)
        self.store_rows = Gauge("legato_store_rows", "Rows of the store on disk, older revs included, by table", ["table"], registry=kept)
        self.parts_lost = Gauge(
            "legato_store_parts_lost",
            "Parts of the embedded store with rows that are not shown, because the parts are damaged or missing; the log names them",
            registry=kept,
        )
        self.store_restarts = Counter(
            "legato_store_restarts",
            "How often the process of the embedded store was ended and started again, by reason: memory or time (a query of a reader went "
            "beyond its limit) or crash",
            ["reason"],
            registry=kept,
        )
        self.errors = Counter("legato_errors", "Failures, by stage and type", ["stage", "type"], registry=kept)
        self.log_left_out = Counter(
            "legato_log_left_out",
            "Records of the log that were not written, by reason: repeated (more than ten of one message in ten seconds) or queue_full "
            "(nothing reads standard error)",
            ["reason"],
            registry=kept,
        )
        self.commit_seconds = Histogram(
            "legato_commit_seconds", "Duration of one commit: the inserts of a group of requests", buckets=_SECONDS, registry=kept
        )
        self.request_seconds = Histogram(
            "legato_request_seconds", "Time from an OTLP request to its reply", buckets=_SECONDS, registry=kept
        )
        self.queue_bytes = Gauge(
            "legato_queue_bytes", "Bytes of decoded rows that wait for their insert or are being inserted", registry=kept
        )
        self.queue_bytes_max = Gauge(
            "legato_queue_bytes_max", "Limit of legato_queue_bytes (LEGATO_QUEUE_BYTES_MAX); beyond it, requests get 429", registry=kept
        )
        self.queries = Counter(
            "legato_queries",
            "Read queries, by result: ok, error, busy (too many queries), foreign (Host or Origin refused), "
            "denied (token, user or password refused)",
            ["result"],
            registry=kept,
        )
        self.query_seconds = Histogram(
            "legato_query_seconds", "Duration of a successful read query, waiting included", buckets=_SECONDS, registry=kept
        )

    def count_received(self, spans: int, points: int, ignored: int, logs: int = 0) -> None:
        """Count a request's spans, points or log records. ``ignored`` log records and points (those without a value) are not stored on
        purpose; ignored spans are counted by ``count_ignored``.
        """
        if logs:
            self.log_records.labels("received").inc(logs)
            self.log_records.labels("ignored").inc(ignored)
        elif points:
            self.points.labels("received").inc(points)
            self.points.labels("ignored").inc(ignored)
        else:
            self.received_spans.inc(spans)

    def count_ignored(self, reason: str, scope: str, spans: int) -> None:
        """Count spans that are not stored on purpose, by reason and instrumentation scope. Only one thread may call it."""
        if not spans:
            return
        scope = _bounded(scope, self._scopes, _SCOPES_MAX)
        self.ignored_spans.labels(reason, scope).inc(spans)

    def count_results(self, counts: Iterable[tuple[str, str, str, int]]) -> None:
        """Count ended streams that were stored, as (service, vantage, result, number). Only one thread may call it."""
        for service, vantage, result, streams in counts:
            service = _bounded(service, self._services, _SERVICES_MAX)
            # All results start at once: a series that appeared with its first bad stream would have no increase for it.
            for each in SLO_RESULTS:
                self.streams.labels(service, vantage, each).inc(streams if each == result else 0)

    def count_stored(self, table: str, stored: int, duplicates: int, refused: int) -> None:
        """Count the outcomes of new rows of a table of engine steps, finished requests or samples."""
        outcomes = {"stored": stored, "duplicate": duplicates}
        for outcome, rows in outcomes.items():
            if table == "node_samples":
                self.points.labels(outcome).inc(rows)
            else:
                self.engine_rows.labels(table, outcome).inc(rows)
        (self.rejected_points if table == "node_samples" else self.rejected_spans).labels("store_refused").inc(refused)


def _bounded(name: str, names: set[str], most: int) -> str:
    """Return the name under which something is counted: all names after the first so many are one."""
    if name not in names and len(names) >= most:
        name = _OTHER
    names.add(name)
    return name
