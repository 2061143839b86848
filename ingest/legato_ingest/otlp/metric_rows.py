"""Rows of ``node_samples`` from an OTLP metrics request.

All points of a request are checked as columns, at once. A rejection is only made for a bad point; it carries names and kinds, never a
value. No metric is treated specially: engine, host and connection are attributes like all others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from legato_ingest.columns import NODE_SAMPLES, NS_MAX, Column, Source
from legato_ingest.otlp.batch import DAY_NS, Builders, Limits, Rejection, build_table
from legato_ingest.otlp.budget import Budget
from legato_ingest.otlp.metric_points import MetricPoints, PointColumns, metrics_in
from legato_ingest.otlp.metric_series import SeriesIndex
from legato_ingest.otlp.row_sizes import BUCKET_BYTES, SAMPLE_BYTES
from legato_ingest.timeline.ragged import Segments

__all__ = ["Samples", "build_samples"]

_NO_RECORDED_VALUE = 1
# Bytes of the attributes of all series of one small request (`split`).
_SERIES_BYTES_MAX = 32 * 2**20
# Bytes of a point with a time and a value.
_POINT_BYTES = 20


class _Status(IntEnum):
    """The result of checking one point, in the order of the checks: the first that applies decides."""

    GOOD = 0
    IGNORED = 1
    ATTRIBUTES = 2
    TIME = 3
    FUTURE = 4
    EXPIRED = 5
    VALUE = 6
    PARTITION = 7
    BUDGET = 8


@dataclass(slots=True)
class Samples:
    """The converted points of a request. ``ignored`` of them are flagged as having no value; ``unlisted`` counts rejected ones without a
    row, by reason.
    """

    table: pa.Table
    points: int
    ignored: int
    rejections: list[Rejection] = field(default_factory=list)
    unlisted: Counter[str] = field(default_factory=Counter)

    def reject(self, metric: MetricPoints, point: Any, reason: str, detail: str, budget: Budget) -> None:
        """Reject a point, or with ``None`` the points of a metric. Beyond the budget of rows it is only counted."""
        if budget.lists():
            self.rejections.append(metric.reject(point, reason, detail))
        else:
            self.unlisted[reason] += 1


def build_samples(request: ExportMetricsServiceRequest, tenant: str, now_ns: int, limits: Limits, budget: Budget) -> Samples:
    """Convert every point of a request to a row or a rejection. ``now_ns`` is the receiver's clock."""
    columns, series = PointColumns(), SeriesIndex(_SERIES_BYTES_MAX)
    out, metrics, refused = Samples(NODE_SAMPLES.empty, 0, 0), [], 0
    for metric in metrics_in(request, budget.items_max):
        fault = metric.fault
        if fault is None:
            metrics.append(metric)
            columns.append(metric, series)
        else:
            out.reject(metric, None, *fault, budget)
            # All points of the metric have the same row.
            out.unlisted[fault[0]] += len(metric.points) - 1
            refused += len(metric.points)
    statuses = _statuses(metrics, columns, series, now_ns, limits, budget)
    out.points, out.ignored = refused + len(columns.series), int((statuses == _Status.IGNORED).sum())
    _reject(metrics, columns, series, statuses, limits, budget, out)
    out.unlisted = +out.unlisted
    out.table = _table(metrics, columns, series, statuses == _Status.GOOD, tenant)
    return out


def _statuses(
    metrics: Sequence[MetricPoints], columns: PointColumns, series: SeriesIndex, now_ns: int, limits: Limits, budget: Budget
) -> NDArray[np.int8]:
    """Return the status of each point."""
    times, starts = np.array(columns.times, np.uint64), np.array(columns.starts, np.uint64)
    of_series, histograms = np.array(columns.series, np.int64), np.zeros(len(times), np.bool_)
    histograms[columns.histogram_rows] = True
    faulty = np.zeros(len(times), np.bool_)
    faulty[list(columns.faults)] = True
    ahead = np.minimum(times, NS_MAX).astype(np.int64) - now_ns
    bounded = bool(limits.retention_days)
    checks = {
        _Status.IGNORED: np.array(columns.flags, np.uint32) & _NO_RECORDED_VALUE != 0,
        _Status.ATTRIBUTES: np.isin(of_series, list(series.faults)),
        _Status.TIME: (times == 0) | (times > NS_MAX) | (starts > times),
        _Status.FUTURE: bounded & (ahead > limits.future_max_s * 1_000_000_000),
        _Status.EXPIRED: bounded & (-ahead > limits.retention_days * DAY_NS),
        _Status.VALUE: faulty | (~np.isfinite(np.array(columns.values, np.float64)) & ~histograms),
    }
    statuses = np.zeros(len(times), np.int8)
    for status, applies in checks.items():
        statuses[(statuses == _Status.GOOD) & applies] = status
    good = np.flatnonzero(statuses == _Status.GOOD)
    on_days = budget.take_times("node_samples", times[good].astype(np.int64))
    statuses[good[~on_days]] = _Status.PARTITION
    good = good[on_days]
    of_rows, of_items = _sizes(metrics, columns, series)
    fits = budget.take_sizes(of_rows[good], of_items[good], np.isin(of_series[good], series.beyond, invert=True))
    statuses[good[~fits]] = _Status.BUDGET
    return statuses


def _sizes(metrics: Sequence[MetricPoints], columns: PointColumns, series: SeriesIndex) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the bytes that the row of each point takes, and about the bytes of the point."""
    of_series = np.array(columns.series, np.int64)
    of_metric = np.array([SAMPLE_BYTES + metric.text_bytes for metric in metrics], np.int64)
    of_items = _POINT_BYTES + np.array(series.own_sizes, np.int64)[of_series]
    of_rows = np.repeat(of_metric, [len(metric.points) for metric in metrics]) + np.array(series.sizes, np.int64)[of_series]
    buckets = BUCKET_BYTES * np.array(list(map(len, columns.histogram_buckets)), np.int64)
    of_items[columns.histogram_rows] += buckets
    of_rows[columns.histogram_rows] += buckets
    return of_rows, of_items


def _reject(
    metrics: Sequence[MetricPoints],
    columns: PointColumns,
    series: SeriesIndex,
    statuses: NDArray[np.int8],
    limits: Limits,
    budget: Budget,
    out: Samples,
) -> None:
    """Reject the points that are neither good nor ignored."""
    bounds, bad = np.cumsum([0, *(len(metric.points) for metric in metrics)]), np.flatnonzero(statuses > _Status.IGNORED)
    listed = max(budget.listed, 0)
    for row in bad[:listed].tolist():
        number = int(np.searchsorted(bounds, row, "right")) - 1
        reason, detail = _explain(_Status(int(statuses[row])), row, columns, series, limits)
        out.reject(metrics[number], metrics[number].points[row - int(bounds[number])], reason, detail, budget)
    for status, count in zip(*np.unique(statuses[bad[listed:]], return_counts=True), strict=True):
        out.unlisted[_explain(_Status(int(status)), -1, columns, series, limits)[0]] += int(count)


def _explain(status: _Status, row: int, columns: PointColumns, series: SeriesIndex, limits: Limits) -> tuple[str, str]:
    """Return the reason and the detail of a rejected point."""
    return {
        _Status.ATTRIBUTES: ("attribute", series.faults.get(columns.series[row], "")),
        _Status.TIME: ("time", "its time is zero or beyond the year 2262, or lies before its start"),
        _Status.FUTURE: ("retention", f"more than {limits.future_max_s} s in the future"),
        _Status.EXPIRED: ("retention", f"before the {limits.retention_days} days that are kept"),
        _Status.VALUE: ("value", columns.faults.get(row, "no value, or one that is not finite")),
        _Status.PARTITION: ("partition_budget", f"on a further day: {limits.days_max} days in one request, and some past ones in one hour"),
        _Status.BUDGET: ("budget", "the rows of this request exceed the limit for a request of its size: send fewer points in one"),
    }[status]


def _table(metrics: Sequence[MetricPoints], columns: PointColumns, series: SeriesIndex, good: NDArray[np.bool_], tenant: str) -> pa.Table:
    """Return the rows of the good points."""
    if not good.any():
        return NODE_SAMPLES.empty
    owners = pa.array(Segments.of_lengths(np.array([len(metric.points) for metric in metrics])).owners()[good])
    of_series = pa.array(np.array(columns.series, np.int64)[good])
    by_series, by_point = _series_values(series), _point_values(columns, good)

    def metric_column(column: Column) -> pa.Array:
        return pa.array([getattr(metric, column.key) for metric in metrics], column.type).take(owners)

    sources: Builders = {
        Source.METRIC: metric_column,
        Source.SERIES: lambda column: by_series[column.key].take(of_series),
        Source.POINT: lambda column: by_point[column.key],
    }
    return build_table(NODE_SAMPLES, int(good.sum()), tenant, sources)


def _series_values(series: SeriesIndex) -> dict[str, pa.Array]:
    """Return the values of each series by key."""
    text = pa.string()
    attributes = pa.MapArray.from_arrays(pa.array(series.offsets, pa.int32()), pa.array(series.keys, text), pa.array(series.texts, text))
    return {
        "engine_id": pa.array(series.engines, text),
        "host": pa.array(series.hosts, text),
        "hash": pa.array(series.hashes, pa.uint64()),
        "attributes": attributes,
    }


def _point_values(columns: PointColumns, good: NDArray[np.bool_]) -> dict[str, pa.Array]:
    """Return the values of the good points by key: of a number its value, of a histogram its count, sum and buckets; the rest is null."""
    starts = np.array(columns.starts, np.uint64)[good]
    values, rows = np.array(columns.values, np.float64), np.array(columns.histogram_rows, np.int64)
    histogram, counts = np.zeros(len(values), np.bool_), np.zeros(len(values), np.uint64)
    histogram[rows] = True
    counts[rows] = np.array(columns.histogram_counts, np.uint64)
    return {
        "recorded_at": pa.array(np.array(columns.times, np.uint64)[good].astype(np.int64), NODE_SAMPLES["recorded_at"].type),
        "start_time": pa.array(starts.astype(np.int64), NODE_SAMPLES["start_time"].type, mask=starts == 0),
        "value": pa.array(values[good], mask=histogram[good]),
        "count": pa.array(counts[good], mask=~histogram[good]),
        "sum": pa.array(values[good], mask=(~histogram | np.isnan(values))[good]),
        "bounds": _lists(columns.histogram_bounds, rows, good, np.float64),
        "bucket_counts": _lists(columns.histogram_buckets, rows, good, np.uint64),
    }


def _lists(values: Sequence[Sequence[Any]], rows: NDArray[np.int64], good: NDArray[np.bool_], dtype: Any) -> pa.Array:
    """Return the lists of the good histograms at their rows; all other rows have an empty list."""
    lengths = np.zeros(len(good), np.int64)
    lengths[rows] = [len(each) for each in values]
    offsets = np.concatenate(([0], np.cumsum(lengths[good]))).astype(np.int32)
    kept = [each for each, row in zip(values, rows.tolist(), strict=True) if good[row]]
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(np.fromiter(chain.from_iterable(kept), dtype)))
