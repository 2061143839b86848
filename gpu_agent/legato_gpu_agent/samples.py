"""Readings as OTLP metrics: one request a flush.

One idea: a sample is a reading and the moment of its round; points of one metric stand together, and host and emitter are said once. The
same samples give the same bytes. It keeps no queue and sends nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import AggregationTemporality, HistogramDataPoint, Metric, NumberDataPoint, ScopeMetrics

from legato_gpu_agent import __version__
from legato_gpu_agent.readings import Attributes, Distribution, Found, Reading

__all__ = ["Sample", "metrics_of"]

_CUMULATIVE = AggregationTemporality.AGGREGATION_TEMPORALITY_CUMULATIVE
_DELTA = AggregationTemporality.AGGREGATION_TEMPORALITY_DELTA


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
    pairs: dict[Attributes, list[KeyValue]] = {}
    for sample in samples:
        found = sample.found
        attributes = pairs.get(found.attributes)
        if attributes is None:
            attributes = pairs[found.attributes] = [
                KeyValue(key=key, value=AnyValue(string_value=value)) for key, value in found.attributes
            ]
        if isinstance(found, Reading):
            _number(scope, metrics, sample.time_ns, found, attributes)
        else:
            _histogram(scope, metrics, sample.time_ns, found, attributes)
    return request


def _pairs(attributes: Attributes) -> list[KeyValue]:
    return [KeyValue(key=key, value=AnyValue(string_value=value)) for key, value in attributes]


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


def _number(
    scope: ScopeMetrics, metrics: dict[tuple[str, str, str], Metric], time_ns: int, found: Reading, attributes: Sequence[KeyValue]
) -> None:
    metric = _metric(scope, metrics, found, "sum" if found.since_ns else "gauge")
    points = metric.sum.data_points if found.since_ns else metric.gauge.data_points
    since_ns = min(found.since_ns, time_ns)
    points.append(NumberDataPoint(attributes=attributes, time_unix_nano=time_ns, start_time_unix_nano=since_ns, as_double=found.value))


def _histogram(
    scope: ScopeMetrics, metrics: dict[tuple[str, str, str], Metric], time_ns: int, found: Distribution, attributes: Sequence[KeyValue]
) -> None:
    point = HistogramDataPoint(
        attributes=attributes,
        time_unix_nano=time_ns,
        start_time_unix_nano=min(found.since_ns, time_ns),
        count=sum(found.counts),
        bucket_counts=found.counts,
        explicit_bounds=found.bounds,
    )
    if found.total is not None:
        point.sum = found.total
    _metric(scope, metrics, found, "histogram").histogram.data_points.append(point)
