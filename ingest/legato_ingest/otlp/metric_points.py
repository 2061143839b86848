"""Data points of an OTLP metrics request as columns: one walk over the request appends each field of the points to a list.

Kinds of metrics that are not supported and metrics without a name are rejected as a whole; exponential histograms become histograms with
bounds. Of the numbers, only those of histograms are checked here; ``metric_rows`` checks all others, column by column.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.metrics.v1.metrics_pb2 import ExponentialHistogramDataPoint, HistogramDataPoint, Metric

from legato_ingest.columns import NS_MAX
from legato_ingest.otlp.batch import Rejection
from legato_ingest.otlp.budget import TooMany
from legato_ingest.otlp.exponential import folded
from legato_ingest.otlp.metric_series import Labels, SeriesIndex, bytes_of, resource_labels, scope_labels

__all__ = ["BOUNDS_MAX", "NAME_CHARACTERS_MAX", "MetricPoints", "PointColumns", "metrics_in"]

BOUNDS_MAX = 1_024
# Buckets of one sign of an exponential histogram. Exporters have 160 by default.
_EXPONENTIAL_MAX = 16_384
NAME_CHARACTERS_MAX = 1_024
_COUNT_MAX = 2**63 - 1
_TEMPORALITIES = {1: "delta", 2: "cumulative"}
_SUPPORTED = frozenset(("gauge", "sum", "histogram"))
_NUMBERS: dict[str | None, Callable[[Any], float]] = {
    "as_double": lambda point: point.as_double,
    "as_int": lambda point: float(point.as_int),
    None: lambda point: math.nan,
}


@dataclass(frozen=True, slots=True)
class MetricPoints:
    """One metric of one resource and scope, with its points."""

    labels: Labels
    name: str
    unit: str
    kind: str
    temporality: str
    monotonic: bool
    points: Sequence[Any]

    @property
    def text_bytes(self) -> int:
        """The bytes of the metric's texts in a row."""
        return bytes_of(self.name) + bytes_of(self.unit) + len(self.kind) + len(self.temporality)

    @property
    def fault(self) -> tuple[str, str] | None:
        """The reason and the detail for which none of the points can be stored; None when they can."""
        if self.kind not in _SUPPORTED:
            return "kind", f"{self.kind} data points are not supported: send gauges, sums or histograms"
        long = max(len(self.name), len(self.unit))
        if not self.name or long > NAME_CHARACTERS_MAX:
            return "metric", f"a name or unit of {long} characters, expected a name and at most {NAME_CHARACTERS_MAX}"
        return None

    def reject(self, point: Any, reason: str, detail: str) -> Rejection:
        """Return the rejection of a point, or with ``None`` that of all points of the metric. Its hash identifies a retry."""
        content = b"" if point is None else point.SerializeToString(deterministic=True)
        service, emitter = (self.labels.texts.get(key, "")[:256] for key in ("service.name", "legato.emitter"))
        return Rejection(
            reason=reason,
            detail=f"metric {self.name[:256]!r}: {detail}",
            start_ns=0 if point is None else min(point.time_unix_nano, NS_MAX),
            service_name=service,
            emitter=emitter,
            otlp_bytes=len(content),
            span_sha256=hashlib.sha256(self.labels.digest + content).digest(),
        )


def metrics_in(request: ExportMetricsServiceRequest, points_max: int) -> Iterator[MetricPoints]:
    """Yield the metrics of a request that have points. Raises ``TooMany`` for more points."""
    for resource_metrics in request.resource_metrics:
        resource = resource_labels(resource_metrics.resource.attributes)
        for scope_metrics in resource_metrics.scope_metrics:
            outer = scope_labels(resource, scope_metrics.scope)
            for metric in scope_metrics.metrics:
                kind = metric.WhichOneof("data")
                points = getattr(metric, kind).data_points if kind else ()
                points_max -= len(points)
                if points_max < 0:
                    raise TooMany
                if points:
                    yield _metric_points(outer, metric, kind, list(points))


def _metric_points(outer: Labels, metric: Metric, kind: str, points: list[Any]) -> MetricPoints:
    data, name, unit = getattr(metric, kind), metric.name, metric.unit
    temporality = "" if kind in ("gauge", "summary") else _TEMPORALITIES.get(data.aggregation_temporality, "unspecified")
    monotonic = kind == "sum" and data.is_monotonic
    kind = "histogram" if kind == "exponential_histogram" else kind
    labels = outer.within([name, unit, kind, temporality, monotonic], {})
    return MetricPoints(labels, name, unit, kind, temporality, monotonic, points)


@dataclass(slots=True)
class PointColumns:
    """The points of some metrics by field. ``values`` holds the sum of a histogram; the lists ``histogram_*`` hold its other fields.

    ``faults`` describes by row what is wrong with the numbers of a histogram.
    """

    series: list[int] = field(default_factory=list)
    times: list[int] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    flags: list[int] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    histogram_rows: list[int] = field(default_factory=list)
    histogram_counts: list[int] = field(default_factory=list)
    histogram_bounds: list[list[float]] = field(default_factory=list)
    histogram_buckets: list[list[int]] = field(default_factory=list)
    faults: dict[int, str] = field(default_factory=dict)

    def append(self, metric: MetricPoints, series: SeriesIndex) -> None:
        """Append the points of a metric."""
        points, labels, number = metric.points, metric.labels, series.number
        self.series += [number(labels, point.attributes) for point in points]
        self.times += [point.time_unix_nano for point in points]
        self.starts += [point.start_time_unix_nano for point in points]
        self.flags += [point.flags for point in points]
        if metric.kind == "histogram":
            self._append_histograms(points)
        else:
            self.values += [_NUMBERS[point.WhichOneof("value")](point) for point in points]

    def _append_histograms(self, points: Iterable[HistogramDataPoint | ExponentialHistogramDataPoint]) -> None:
        for point in points:
            row, fault = len(self.values), _length_fault(point)
            self.values.append(point.sum if point.HasField("sum") else math.nan)
            bounds, buckets = _buckets_of(point) if not fault else ([], [])
            fault = fault or _histogram_fault(point, bounds, buckets)
            if fault:
                self.faults[row] = fault
            else:
                self.histogram_rows.append(row)
                self.histogram_counts.append(point.count)
                self.histogram_bounds.append(bounds)
                self.histogram_buckets.append(buckets)


def _length_fault(point: HistogramDataPoint | ExponentialHistogramDataPoint) -> str:
    """Describe why the buckets of a histogram are not even read; empty when they are."""
    if isinstance(point, ExponentialHistogramDataPoint):
        found = max(len(point.positive.bucket_counts), len(point.negative.bucket_counts))
        return f"{found} buckets of one sign, at most {_EXPONENTIAL_MAX} are read" if found > _EXPONENTIAL_MAX else ""
    bounds, buckets = len(point.explicit_bounds), len(point.bucket_counts)
    if bounds > BOUNDS_MAX:
        return f"{bounds} bounds, at most {BOUNDS_MAX} are stored"
    if buckets != bounds + 1 and (bounds or buckets):
        return f"{bounds} bounds with {buckets} bucket counts, expected one bucket count more than bounds"
    return ""


def _buckets_of(point: HistogramDataPoint | ExponentialHistogramDataPoint) -> tuple[list[float], list[int]]:
    """Return the bounds and the bucket counts of a histogram of either kind."""
    if isinstance(point, ExponentialHistogramDataPoint):
        return folded(point)
    return list(point.explicit_bounds), list(point.bucket_counts)


def _histogram_fault(point: HistogramDataPoint | ExponentialHistogramDataPoint, bounds: list[float], buckets: list[int]) -> str:
    """Describe what is wrong with the numbers of a histogram; empty when nothing is. A negative count arrives as one beyond 63 bits."""
    if max(buckets, default=0) > _COUNT_MAX or point.count > _COUNT_MAX:
        return "a count that is negative or beyond 63 bits"
    if buckets and sum(buckets) != point.count:
        return "bucket counts that do not add up to the count"
    if not all(map(math.isfinite, bounds)) or any(low >= high for low, high in zip(bounds, bounds[1:], strict=False)):
        return "bounds that do not rise, or are not finite"
    return "" if math.isfinite(point.sum) else "a sum that is not finite"
