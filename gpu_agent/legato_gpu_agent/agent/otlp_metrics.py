"""Readings as OTLP metrics: one request a flush.

One idea: a sample is a reading and the moment of its round; points of one metric stand together, and host and emitter are said once. The
same samples give the same bytes. It keeps no queue and sends nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import AggregationTemporality, HistogramDataPoint, Metric, NumberDataPoint, ScopeMetrics

from legato_gpu_agent import __version__
from legato_gpu_agent.collectors.measurement import Attributes, Distribution, Found, Reading

__all__ = ["Sample", "metrics_of"]

_CUMULATIVE = AggregationTemporality.AGGREGATION_TEMPORALITY_CUMULATIVE
_DELTA = AggregationTemporality.AGGREGATION_TEMPORALITY_DELTA
# Attributes whose points are kept.
_POINTS_MAX = 4_096


@dataclass(frozen=True, slots=True)
class Sample:
    """A reading and when it was taken, ns since the epoch."""

    time_ns: int
    found: Found


def metrics_of(host: str, samples: Sequence[Sample]) -> ExportMetricsServiceRequest:
    """These samples as one request: gauges, cumulative counters and delta histograms."""
    request = ExportMetricsServiceRequest()
    resource = request.resource_metrics.add()
    resource.resource.attributes.add(key="host.name", value=AnyValue(string_value=host))
    scope = resource.scope_metrics.add()
    scope.scope.name = "legato"
    scope.scope.attributes.add(key="legato.emitter", value=AnyValue(string_value=f"legato-gpu-agent/{__version__}"))
    metrics: dict[tuple[str, str, str], Metric] = {}
    for sample in samples:
        if isinstance(sample.found, Reading):
            _number(scope, metrics, sample.time_ns, sample.found)
        else:
            _histogram(scope, metrics, sample.time_ns, sample.found)
    return request


@lru_cache(_POINTS_MAX)
def _point(attributes: Attributes) -> NumberDataPoint:
    """A point of these attributes, whose times and value are the last one's: the next sets all three. Most are asked for every second."""
    return NumberDataPoint(attributes=[KeyValue(key=key, value=AnyValue(string_value=value)) for key, value in attributes])


def _metric(scope: ScopeMetrics, metrics: dict[tuple[str, str, str], Metric], found: Found, kind: str) -> Metric:
    """The metric that this belongs to; made when it is the first."""
    key = (found.metric, found.unit, kind)
    metric = metrics.get(key)
    if metric is None:
        metric = metrics[key] = scope.metrics.add(name=found.metric, unit=found.unit)
        if kind == "sum":
            metric.sum.is_monotonic, metric.sum.aggregation_temporality = True, _CUMULATIVE
        elif kind == "histogram":
            metric.histogram.aggregation_temporality = _DELTA
    return metric


def _number(scope: ScopeMetrics, metrics: dict[tuple[str, str, str], Metric], time_ns: int, found: Reading) -> None:
    metric = _metric(scope, metrics, found, "sum" if found.since_ns else "gauge")
    point = _point(found.attributes)
    point.time_unix_nano, point.start_time_unix_nano, point.as_double = time_ns, min(found.since_ns, time_ns), found.value
    # A copy of it.
    (metric.sum if found.since_ns else metric.gauge).data_points.append(point)


def _histogram(scope: ScopeMetrics, metrics: dict[tuple[str, str, str], Metric], time_ns: int, found: Distribution) -> None:
    point = HistogramDataPoint(
        attributes=_point(found.attributes).attributes,
        time_unix_nano=time_ns,
        start_time_unix_nano=min(found.since_ns, time_ns),
        count=sum(found.counts),
        bucket_counts=found.counts,
        explicit_bounds=found.bounds,
    )
    if found.total is not None:
        point.sum = found.total
    _metric(scope, metrics, found, "histogram").histogram.data_points.append(point)
