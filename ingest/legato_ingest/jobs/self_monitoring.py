"""`legato serve` keeps its own metrics beside everyone's, as samples of a node, so that dashboards and alerts can read them.

One idea: they go in by the same door as a stranger's, an OTLP request through decoder and committer, so nothing about them is special. What
must be asked of the store (its sizes) is asked just before. When the store cannot take them, they are dropped and counted as an error.
"""

from __future__ import annotations

import socket
import time

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.metrics.v1.metrics_pb2 import AggregationTemporality, Metric

from legato_ingest.metrics import Metrics
from legato_ingest.otlp.spans import Limits
from legato_ingest.otlp.stream_rows import sample_rows_of
from legato_ingest.periodic import Background
from legato_ingest.storage.chdb import Store
from legato_ingest.write.committer import Committer

__all__ = ["SelfSampler", "request_of"]

_EVERY_S = 15.0
_SIZES = """
SELECT table, sum(bytes_on_disk), sum(rows)
FROM system.parts
WHERE active AND database = currentDatabase()
GROUP BY table"""


class SelfSampler:
    """Samples ``metrics`` every 15 s from ``start()`` until ``close()``. ``store`` is asked for its sizes, ``committer`` takes the rows.

    ``instance`` tells this process from others of its host, where there may be some.
    """

    def __init__(self, store: Store, committer: Committer, metrics: Metrics, instance: str = "", every_s: float = _EVERY_S) -> None:
        self._instance = instance
        self._store, self._committer, self._metrics = store, committer, metrics
        self._started_ns = time.time_ns()
        self._background = Background("self", self.step, every_s, metrics)

    def start(self) -> None:
        """Sample in the background from now on."""
        self._background.start()

    def close(self) -> None:
        """Stop; what was handed over is the committer's."""
        self._background.close()

    def step(self) -> None:
        """One sample of everything."""
        for table, size, rows in self._store.select(_SIZES):
            self._metrics.store_bytes.labels(str(table)).set(int(size))
            self._metrics.store_rows.labels(str(table)).set(int(rows))
        now_ns = time.time_ns()
        request = request_of(self._metrics, socket.gethostname(), self._started_ns, now_ns, self._instance)
        batch = sample_rows_of(request, tenant="", received_at_ns=now_ns, limits=Limits())
        self._metrics.count_received(batch.spans, batch.points, batch.ignored)
        self._committer.submit(batch)


def request_of(metrics: Metrics, host: str, started_ns: int, now_ns: int, instance: str = "") -> ExportMetricsServiceRequest:
    """The registry as OTLP: counters (a histogram's sum and count among them) as sums since ``started_ns``, the rest as gauges."""
    request = ExportMetricsServiceRequest()
    resource = request.resource_metrics.add()
    for key, value in (("service.name", "legato"), ("host.name", host), ("service.instance.id", instance)):
        if not value:
            continue
        resource.resource.attributes.add(key=key).value.string_value = value
    scope = resource.scope_metrics.add()
    scope.scope.name = "legato"
    made: dict[str, Metric] = {}
    for family in metrics.registry.collect():
        # Of each service, vantage and result: `stream_minutes` has them already.
        if family.name == "legato_streams":
            continue
        for sample in family.samples:
            if sample.name.endswith(("_created", "_bucket")):
                continue
            if sample.name not in made:
                made[sample.name] = scope.metrics.add(name=sample.name)
            metric, is_sum = made[sample.name], family.type in ("counter", "histogram")
            if is_sum:
                metric.sum.aggregation_temporality = AggregationTemporality.AGGREGATION_TEMPORALITY_CUMULATIVE
                metric.sum.is_monotonic = True
            point = (metric.sum if is_sum else metric.gauge).data_points.add(time_unix_nano=now_ns, as_double=sample.value)
            if is_sum:
                point.start_time_unix_nano = started_ns
            for key, value in sample.labels.items():
                point.attributes.add(key=key).value.string_value = value
    return request
