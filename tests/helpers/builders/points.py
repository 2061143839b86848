"""Build OTLP metrics requests point by point, in the forms that any emitter may send."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import KeyValue

from helpers.builders.spans import any_value

__all__ = ["ENGINE", "gauge", "histogram", "metrics_request", "point_requests", "total"]

ENGINE = {"legato.engine.id": "node-1:8000", "host.name": "node-1"}
CUMULATIVE = 2


def _keyed(attributes: Mapping[str, Any] | None) -> list[KeyValue]:
    return [KeyValue(key=key, value=any_value(value)) for key, value in (attributes or {}).items()]


def metrics_request(resource: Mapping[str, Any] | None = None, scope: str = "test") -> ExportMetricsServiceRequest:
    """An empty request with one resource and one scope. The default resource is an engine on a host."""
    out = ExportMetricsServiceRequest()
    resource_metrics = out.resource_metrics.add()
    resource_metrics.resource.attributes.extend(_keyed(ENGINE if resource is None else resource))
    resource_metrics.scope_metrics.add().scope.name = scope
    return out


def gauge(body: ExportMetricsServiceRequest, name: str, value: float | int | None, time_ns: int, **more: Any) -> Any:
    """Add a gauge with one point and return the point. ``more`` takes ``unit``, ``attributes`` and other fields of the point."""
    metric = body.resource_metrics[0].scope_metrics[0].metrics.add(name=name, unit=more.pop("unit", "1"))
    return _number(metric.gauge, value, time_ns, **more)


def total(body: ExportMetricsServiceRequest, name: str, value: float | int | None, time_ns: int, **more: Any) -> Any:
    """Add a sum with one point, cumulative and monotonic by default, and return the point."""
    metric = body.resource_metrics[0].scope_metrics[0].metrics.add(name=name, unit=more.pop("unit", "s"))
    metric.sum.aggregation_temporality = more.pop("temporality", CUMULATIVE)
    metric.sum.is_monotonic = more.pop("monotonic", True)
    return _number(metric.sum, value, time_ns, **more)


def _number(data: Any, value: float | int | None, time_ns: int, attributes: Mapping[str, Any] | None = None, **fields: Any) -> Any:
    point = data.data_points.add(time_unix_nano=time_ns, attributes=_keyed(attributes), **fields)
    if isinstance(value, float):
        point.as_double = value
    elif value is not None:
        point.as_int = value
    return point


def histogram(
    body: ExportMetricsServiceRequest, name: str, bounds: Sequence[float], counts: Sequence[int], time_ns: int, **more: Any
) -> Any:
    """Add a cumulative histogram with one point and return the point."""
    metric = body.resource_metrics[0].scope_metrics[0].metrics.add(name=name, unit="s")
    metric.histogram.aggregation_temporality = CUMULATIVE
    fields = {"count": sum(counts), "sum": 1.5, **more}
    attributes = _keyed(fields.pop("attributes", None))
    return metric.histogram.data_points.add(
        time_unix_nano=time_ns, explicit_bounds=bounds, bucket_counts=counts, attributes=attributes, **fields
    )


def point_requests(body: ExportMetricsServiceRequest) -> list[ExportMetricsServiceRequest]:
    """The same points, each in a separate request."""
    out = []
    for r, resource_metrics in enumerate(body.resource_metrics):
        for s, scope_metrics in enumerate(resource_metrics.scope_metrics):
            for m, metric in enumerate(scope_metrics.metrics):
                kind = metric.WhichOneof("data")
                for point in list(getattr(metric, kind).data_points):
                    one = ExportMetricsServiceRequest()
                    one.resource_metrics.add().CopyFrom(body.resource_metrics[r])
                    del one.resource_metrics[0].scope_metrics[:]
                    one.resource_metrics[0].scope_metrics.add().CopyFrom(resource_metrics.scope_metrics[s])
                    del one.resource_metrics[0].scope_metrics[0].metrics[:]
                    one.resource_metrics[0].scope_metrics[0].metrics.add().CopyFrom(scope_metrics.metrics[m])
                    data = getattr(one.resource_metrics[0].scope_metrics[0].metrics[0], kind)
                    del data.data_points[:]
                    data.data_points.add().CopyFrom(point)
                    out.append(one)
    return out
