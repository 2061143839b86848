"""Encodes measurements as OTLP metrics: one request per flush.

Points of one metric are grouped, and host and emitter appear once. The same measurements give the same bytes. The module keeps no queue and
sends nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import AggregationTemporality, HistogramDataPoint, Metric, NumberDataPoint, ScopeMetrics

from legato_gpu_agent import __version__
from legato_gpu_agent.collectors.measurement import Attributes, Distribution, Measured, Measurement, Timed

__all__ = ["metrics_request"]

_CUMULATIVE = AggregationTemporality.AGGREGATION_TEMPORALITY_CUMULATIVE
_DELTA = AggregationTemporality.AGGREGATION_TEMPORALITY_DELTA
# Size of the cache of points, by attributes.
_POINTS_MAX = 4_096


def metrics_request(host: str, measurements: Sequence[Timed]) -> ExportMetricsServiceRequest:
    """Return these measurements as one request: gauges, cumulative counters and delta histograms."""
    request = ExportMetricsServiceRequest()
    resource = request.resource_metrics.add()
    resource.resource.attributes.add(key="host.name", value=AnyValue(string_value=host))
    scope = resource.scope_metrics.add()
    scope.scope.name = "legato"
    scope.scope.attributes.add(key="legato.emitter", value=AnyValue(string_value=f"legato-gpu-agent/{__version__}"))
    metrics: dict[tuple[str, str, str], Metric] = {}
    for time_ns, measured in measurements:
        if isinstance(measured, Measurement):
            _add_number(scope, metrics, time_ns, measured)
        else:
            _add_histogram(scope, metrics, time_ns, measured)
    return request


@lru_cache(_POINTS_MAX)
def _point(attributes: Attributes) -> NumberDataPoint:
    """Return a cached point with these attributes; the caller must set its times and its value. Most points repeat every second."""
    return NumberDataPoint(attributes=[KeyValue(key=key, value=AnyValue(string_value=value)) for key, value in attributes])


def _metric(scope: ScopeMetrics, metrics: dict[tuple[str, str, str], Metric], measured: Measured, kind: str) -> Metric:
    """Return the metric of a measurement; add it to the scope if it is new."""
    key = (measured.metric, measured.unit, kind)
    metric = metrics.get(key)
    if metric is None:
        metric = metrics[key] = scope.metrics.add(name=measured.metric, unit=measured.unit)
        if kind == "sum":
            metric.sum.is_monotonic, metric.sum.aggregation_temporality = True, _CUMULATIVE
        elif kind == "histogram":
            metric.histogram.aggregation_temporality = _DELTA
    return metric


def _add_number(scope: ScopeMetrics, metrics: dict[tuple[str, str, str], Metric], time_ns: int, measured: Measurement) -> None:
    is_counter = measured.start_ns is not None
    metric = _metric(scope, metrics, measured, "sum" if is_counter else "gauge")
    point = _point(measured.attributes)
    point.time_unix_nano, point.start_time_unix_nano, point.as_double = time_ns, min(measured.start_ns or 0, time_ns), measured.value
    # `append` copies the cached point.
    (metric.sum if is_counter else metric.gauge).data_points.append(point)


def _add_histogram(scope: ScopeMetrics, metrics: dict[tuple[str, str, str], Metric], time_ns: int, measured: Distribution) -> None:
    point = HistogramDataPoint(
        attributes=_point(measured.attributes).attributes,
        time_unix_nano=time_ns,
        start_time_unix_nano=min(measured.start_ns, time_ns),
        count=sum(measured.counts),
        bucket_counts=measured.counts,
        explicit_bounds=measured.bounds,
    )
    if measured.total is not None:
        point.sum = measured.total
    _metric(scope, metrics, measured, "histogram").histogram.data_points.append(point)
