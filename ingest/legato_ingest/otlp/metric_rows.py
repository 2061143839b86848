"""From an OTLP metrics request to rows of `node_samples`, as an Arrow table.

One idea: all points of a request are judged as columns, at once; a record is made only of one that is refused, by names and kinds and
never by value. It knows no metric: engine, host and connection are attributes like others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from legato_ingest.otlp.metric_points import Block, Columns, blocks_of
from legato_ingest.otlp.metric_series import Series
from legato_ingest.otlp.spans import DAY_NS, NS_MAX, Limits, Rejection
from legato_ingest.timeline.ragged import Segments

__all__ = ["NO_SAMPLES", "Samples", "read_samples"]

_NO_RECORDED_VALUE = 1
_TEXT, _TIMESTAMP, _RECEIVED = pa.string(), pa.timestamp("ns", "UTC"), pa.timestamp("ms", "UTC")
_SCHEMA = pa.schema(
    [
        *((name, _TEXT) for name in ("tenant", "metric", "engine_id", "host")),
        ("series", pa.uint64()),
        ("recorded_at", _TIMESTAMP),
        ("start_time", _TIMESTAMP),
        ("received_at", _RECEIVED),
        *((name, _TEXT) for name in ("kind", "temporality", "unit")),
        ("monotonic", pa.bool_()),
        ("attributes", pa.map_(_TEXT, _TEXT)),
        ("value", pa.float64()),
        ("count", pa.uint64()),
        ("sum", pa.float64()),
        ("bounds", pa.list_(pa.float64())),
        ("bucket_counts", pa.list_(pa.uint64())),
    ]
)
NO_SAMPLES: pa.Table = _SCHEMA.empty_table()
# What may become of a point, in the order in which it is asked.
_GOOD, _IGNORED, _ATTRIBUTES, _BUDGET, _TIME, _AHEAD, _PAST, _VALUE = range(8)


@dataclass(slots=True)
class Samples:
    """What a request held. ``ignored`` points say that they have no value; ``attribute_bytes`` is what the rows repeat of attributes."""

    table: pa.Table
    rejections: list[Rejection]
    points: int
    ignored: int
    attribute_bytes: int


def read_samples(request: ExportMetricsServiceRequest, tenant: str, received_at_ns: int, limits: Limits) -> Samples:
    """Judge every point of a request. Pure: the receiver's clock comes in as ns since the epoch."""
    columns, series = Columns(), Series(limits.attribute_bytes_per_request_max)
    blocks, rejections = [], list[Rejection]()
    for block in blocks_of(request):
        fault = block.fault
        if fault is None:
            blocks.append(block)
            columns.take(block, series)
        else:
            rejections += [block.refuse(None, *fault)] * len(block.points)
    points = len(rejections) + len(columns.series)
    fates = _fates(columns, series, received_at_ns, limits)
    rejections += _rejections(blocks, columns, series, fates, limits)
    table = _table(blocks, columns, series, fates == _GOOD, tenant, received_at_ns)
    spent = limits.attribute_bytes_per_request_max - max(series.bytes_left, 0)
    return Samples(table, rejections, points, int((fates == _IGNORED).sum()), spent)


def _fates(columns: Columns, series: Series, received_at_ns: int, limits: Limits) -> NDArray[np.int8]:
    """What becomes of each point."""
    times, starts = np.array(columns.times, np.uint64), np.array(columns.starts, np.uint64)
    of_series, histograms = np.array(columns.series, np.int64), np.zeros(len(times), np.bool_)
    histograms[columns.histogram_rows] = True
    faulty = np.zeros(len(times), np.bool_)
    faulty[list(columns.faults)] = True
    ahead = np.minimum(times, NS_MAX).astype(np.int64) - received_at_ns
    kept = bool(limits.retention_days)
    checks = {
        _IGNORED: np.array(columns.flags, np.uint32) & _NO_RECORDED_VALUE != 0,
        _ATTRIBUTES: np.isin(of_series, list(series.faults)),
        _BUDGET: of_series < 0,
        _TIME: (times == 0) | (times > NS_MAX) | (starts > times),
        _AHEAD: kept & (ahead > limits.future_max_s * 1_000_000_000),
        _PAST: kept & (-ahead > limits.retention_days * DAY_NS),
        _VALUE: faulty | (~np.isfinite(np.array(columns.values, np.float64)) & ~histograms),
    }
    fates = np.zeros(len(times), np.int8)
    for fate, hit in checks.items():
        fates[(fates == _GOOD) & hit] = fate
    return fates


def _rejections(blocks: Sequence[Block], columns: Columns, series: Series, fates: NDArray[np.int8], limits: Limits) -> list[Rejection]:
    bounds = np.cumsum([0, *(len(block.points) for block in blocks)])
    out = []
    for row in np.flatnonzero(fates > _IGNORED).tolist():
        number = int(np.searchsorted(bounds, row, "right")) - 1
        fate, block = int(fates[row]), blocks[number]
        reason, detail = {
            _ATTRIBUTES: ("attribute", series.faults.get(columns.series[row], "")),
            _BUDGET: ("budget", "the attributes of this request's rows are more than one request may bring: send fewer points in one"),
            _TIME: ("time", "its time is zero or beyond the year 2262, or lies before its start"),
            _AHEAD: ("retention", f"more than {limits.future_max_s} s in the future"),
            _PAST: ("retention", f"before the {limits.retention_days} days that are kept"),
            _VALUE: ("value", columns.faults.get(row, "no value, or one that is not finite")),
        }[fate]
        out.append(block.refuse(block.points[row - int(bounds[number])], reason, detail))
    return out


def _table(
    blocks: Sequence[Block], columns: Columns, series: Series, good: NDArray[np.bool_], tenant: str, received_at_ns: int
) -> pa.Table:
    """The rows of the points that are good."""
    if not good.any():
        return NO_SAMPLES
    count = int(good.sum())
    owners = pa.array(Segments.of_lengths(np.array([len(block.points) for block in blocks])).owners()[good])
    of_series = pa.array(np.array(columns.series, np.int64)[good])
    starts = np.array(columns.starts, np.uint64)[good]

    def by_metric(values: list[Any], kind: pa.DataType) -> pa.Array:
        return pa.array(values, kind).take(owners)

    out = {
        "tenant": pa.repeat(pa.scalar(tenant, _TEXT), count),
        "metric": by_metric([block.metric.name for block in blocks], _TEXT),
        "engine_id": pa.array(series.engines, _TEXT).take(of_series),
        "host": pa.array(series.hosts, _TEXT).take(of_series),
        "series": pa.array(series.hashes, pa.uint64()).take(of_series),
        "recorded_at": pa.array(np.array(columns.times, np.uint64)[good].astype(np.int64), _TIMESTAMP),
        "start_time": pa.array(starts.astype(np.int64), _TIMESTAMP, mask=starts == 0),
        "received_at": pa.array(np.full(count, received_at_ns // 1_000_000, np.int64), _RECEIVED),
        "kind": by_metric([block.kind for block in blocks], _TEXT),
        "temporality": by_metric([block.temporality for block in blocks], _TEXT),
        "monotonic": by_metric([block.monotonic for block in blocks], pa.bool_()),
        "unit": by_metric([block.metric.unit for block in blocks], _TEXT),
        "attributes": _attributes(series).take(of_series),
        **_number_columns(columns, good),
    }
    return pa.table(out, schema=_SCHEMA)


def _attributes(series: Series) -> pa.Array:
    return pa.MapArray.from_arrays(pa.array(series.offsets, pa.int32()), pa.array(series.keys, _TEXT), pa.array(series.texts, _TEXT))


def _number_columns(columns: Columns, good: NDArray[np.bool_]) -> dict[str, pa.Array]:
    """A number's value, or a histogram's count, sum and buckets: NULL and empty where the other kind has its own."""
    values, rows = np.array(columns.values, np.float64), np.array(columns.histogram_rows, np.int64)
    histogram, counts = np.zeros(len(values), np.bool_), np.zeros(len(values), np.uint64)
    histogram[rows] = True
    counts[rows] = np.array(columns.histogram_counts, np.uint64)
    return {
        "value": pa.array(values[good], mask=histogram[good]),
        "count": pa.array(counts[good], mask=~histogram[good]),
        "sum": pa.array(values[good], mask=(~histogram | np.isnan(values))[good]),
        "bounds": _lists(columns.histogram_bounds, rows, good, np.float64),
        "bucket_counts": _lists(columns.histogram_buckets, rows, good, np.uint64),
    }


def _lists(values: Sequence[Sequence[Any]], rows: NDArray[np.int64], good: NDArray[np.bool_], dtype: Any) -> pa.Array:
    """The lists of the good histograms, at their rows; empty at all others."""
    lengths = np.zeros(len(good), np.int64)
    lengths[rows] = [len(each) for each in values]
    offsets = np.concatenate(([0], np.cumsum(lengths[good]))).astype(np.int32)
    kept = [each for each, row in zip(values, rows.tolist(), strict=True) if good[row]]
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(np.fromiter(chain.from_iterable(kept), dtype)))
