"""Self-monitoring: `legato serve` stores its own metrics as node samples, so that dashboards and alerts can read them.

The metrics become an OTLP request that passes through the same decoder and committer as any other. The table sizes are queried before each
fourth sample. If the store fails, that sample is dropped and counted as an error.
"""

from __future__ import annotations

import contextlib
import socket
import time

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.metrics.v1.metrics_pb2 import AggregationTemporality, Metric

from legato_ingest.errors import LegatoError
from legato_ingest.metrics import Metrics
from legato_ingest.otlp.batch import Limits
from legato_ingest.otlp.convert import convert_points
from legato_ingest.periodic import PeriodicTask
from legato_ingest.storage import Store
from legato_ingest.stream_histograms import HISTOGRAMS
from legato_ingest.write.committer import Committer

__all__ = ["SelfMonitor", "request_of"]

_EVERY_S = 15.0
# The statement reads a row for each part of the store: at rest it was a fiftieth of all processor time.
_SIZES_EVERY = 4
_OF_SERVICES = frozenset(("legato_streams", *(each.name for each in HISTOGRAMS)))
_SIZES = """
SELECT table, sum(bytes_on_disk), sum(rows)
FROM system.parts
WHERE active AND database = currentDatabase()
GROUP BY table"""


class SelfMonitor:
    """Samples ``metrics`` every 15 s from ``start()`` until ``close()``: reads table sizes from ``store``, submits rows to ``committer``.

    ``instance`` identifies this process if a host may run several; empty otherwise.
    """

    def __init__(self, store: Store, committer: Committer, metrics: Metrics, instance: str = "", every_s: float = _EVERY_S) -> None:
        self._instance = instance
        self._store, self._committer, self._metrics = store, committer, metrics
        self._started_ns, self._samples = time.time_ns(), 0
        self._task = PeriodicTask("self", self.step, every_s, metrics)

    def start(self) -> None:
        """Sample in the background from now on."""
        self._task.start()

    def close(self) -> None:
        """Stop, and submit the last sample, which shows that the process ends and does not hang. Samples stay with the committer."""
        self._task.close()
        self._metrics.up.set(0)
        # A full queue, or a committer that has ended, keeps no other part of the process from its end.
        with contextlib.suppress(LegatoError):
            self._submit()

    def step(self) -> None:
        """Submit one sample of all metrics. Before each fourth one, update the table sizes."""
        if self._samples % _SIZES_EVERY == 0:
            for table, size, rows in self._store.select(_SIZES):
                self._metrics.store_bytes.labels(str(table)).set(int(size))
                self._metrics.store_rows.labels(str(table)).set(int(rows))
        self._samples += 1
        self._submit()

    def _submit(self) -> None:
        now_ns = time.time_ns()
        request = request_of(self._metrics, socket.gethostname(), self._started_ns, now_ns, self._instance)
        batch = convert_points(request, tenant="", now_ns=now_ns, limits=Limits())
        self._metrics.count_received(batch.spans, batch.points, batch.ignored)
        self._committer.submit(batch)


def request_of(metrics: Metrics, host: str, started_ns: int, now_ns: int, instance: str = "") -> ExportMetricsServiceRequest:
    """Return the registry as OTLP: counters, and histograms' sums and counts, as sums since ``started_ns``; the rest as gauges."""
    request = ExportMetricsServiceRequest()
    resource = request.resource_metrics.add()
    for key, value in (("service.name", "legato"), ("host.name", host), ("service.instance.id", instance)):
        if not value:
            continue
        resource.resource.attributes.add(key=key).value.string_value = value
    scope = resource.scope_metrics.add()
    scope.scope.name = "legato"
    by_name: dict[str, Metric] = {}
    for family in metrics.registry.collect():
        # Series of each service and vantage; `stream_minutes` holds the same counts.
        if family.name in _OF_SERVICES:
            continue
        for sample in family.samples:
            if sample.name.endswith(("_created", "_bucket")):
                continue
            if sample.name not in by_name:
                by_name[sample.name] = scope.metrics.add(name=sample.name)
            metric, is_sum = by_name[sample.name], family.type in ("counter", "histogram")
            if is_sum:
                metric.sum.aggregation_temporality = AggregationTemporality.AGGREGATION_TEMPORALITY_CUMULATIVE
                metric.sum.is_monotonic = True
            point = (metric.sum if is_sum else metric.gauge).data_points.add(time_unix_nano=now_ns, as_double=sample.value)
            if is_sum:
                point.start_time_unix_nano = started_ns
            for key, value in sample.labels.items():
                point.attributes.add(key=key).value.string_value = value
    return request
