"""Exponential histograms: the counts of the values that were recorded, in at most 160 buckets, and points of any damage."""

from __future__ import annotations

import math
import random
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics
from opentelemetry.proto.metrics.v1.metrics_pb2 import ExponentialHistogramDataPoint
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.metrics.view import ExponentialBucketHistogramAggregation, View

from helpers.builders.json_otlp import messages
from helpers.platform.examples import examples
from legato_ingest.otlp.exponential import BUCKETS_MAX, folded

Buckets = ExponentialHistogramDataPoint.Buckets


def buckets(indexes: Sequence[int]) -> Buckets:
    """Return the buckets of values with these indexes."""
    if not indexes:
        return Buckets()
    counts = Counter(indexes)
    return Buckets(offset=min(indexes), bucket_counts=[counts[index] for index in range(min(indexes), max(indexes) + 1)])


def counted(values: Sequence[float], bounds: Sequence[float]) -> list[int]:
    """Count values directly, as a histogram with these bounds does: up to and including each bound."""
    found = Counter(bisect_left(bounds, value) for value in values)
    return [found[at] for at in range(len(bounds) + 1)]


def check(point: ExponentialHistogramDataPoint, values: Sequence[float]) -> list[float]:
    """Check that the folded counts are those of the values, and return the bounds."""
    bounds, counts = folded(point)
    assert counts == counted(values, bounds) and len(bounds) <= BUCKETS_MAX + 4
    assert all(map(math.isfinite, bounds)) and all(low < high for low, high in zip(bounds, bounds[1:], strict=False))
    return bounds


@given(
    scale=st.integers(-6, 20),
    positive=st.lists(st.integers(-3_000, 3_000), max_size=20),
    negative=st.lists(st.integers(-3_000, 3_000), max_size=20),
    zeros=st.integers(0, 3),
)
@examples(150)
def test_counts_are_those_of_the_values(scale: int, positive: list[int], negative: list[int], zeros: int) -> None:
    """For values in the middle of buckets of any scale, merged or not."""
    most = int(1000 * 2.0**scale)
    positive, negative = ([max(-most, min(index, most - 1)) for index in each] for each in (positive, negative))
    values = [sign * 2.0 ** ((index + 0.5) * 2.0**-scale) for sign, each in ((1, positive), (-1, negative)) for index in each]
    point = ExponentialHistogramDataPoint(scale=scale, zero_count=zeros, positive=buckets(positive), negative=buckets(negative))
    if values or zeros:
        check(point, [*values, *[0.0] * zeros])
    else:
        assert folded(point) == ([], [])


@pytest.mark.parametrize("spread", [0.1, 3.0])
def test_the_histogram_of_the_sdk_is_folded(spread: float) -> None:
    """Every recorded value is in its bucket; with few values the bounds are within 5 % of each other."""
    reader, rng = InMemoryMetricReader(), random.Random(1)
    view = View(instrument_name="*", aggregation=ExponentialBucketHistogramAggregation())
    instrument = MeterProvider([reader], views=[view]).get_meter("test").create_histogram("h")
    values = [rng.lognormvariate(0, spread) for _ in range(2_000)] + [0.0] * 5
    for value in values:
        instrument.record(value)
    data = reader.get_metrics_data()
    assert data is not None
    metric = encode_metrics(data).resource_metrics[0].scope_metrics[0].metrics[0]
    bounds = check(metric.exponential_histogram.data_points[0], values)
    assert bounds[0] == 0.0 and max(high / low for low, high in zip(bounds[1:], bounds[2:], strict=False)) < (1.05 if spread < 1 else 2)


def test_bounds_are_exact_powers() -> None:
    """At scale 0 those of two; at scale -1 those of four; the lowest bound separates zeros from values."""
    point = ExponentialHistogramDataPoint(scale=0, zero_count=1, positive=Buckets(offset=-2, bucket_counts=[0, 1, 0, 2]))
    assert folded(point) == ([0.0, 0.5, 1.0, 2.0, 4.0], [1, 0, 1, 0, 2, 0])
    point = ExponentialHistogramDataPoint(scale=-1, negative=Buckets(offset=0, bucket_counts=[3, 1]))
    assert folded(point) == ([-16.0, -4.0, -1.0], [0, 1, 3, 0])
    point = ExponentialHistogramDataPoint(scale=0, zero_count=2, zero_threshold=3.0, positive=Buckets(offset=0, bucket_counts=[1, 1, 1]))
    assert folded(point) == ([-3.0, 3.0, 4.0, 8.0], [0, 3, 1, 1, 0])


def test_many_buckets_are_merged() -> None:
    """A million of them, quickly; no count is lost."""
    point = ExponentialHistogramDataPoint(scale=20, positive=Buckets(offset=-500_000, bucket_counts=[1] * 1_000_000))
    bounds, counts = folded(point)
    assert BUCKETS_MAX // 2 < len(bounds) <= BUCKETS_MAX + 1 and sum(counts) == 1_000_000


@given(messages(ExponentialHistogramDataPoint.DESCRIPTOR))
@examples(100)
def test_any_point_is_folded(point: ExponentialHistogramDataPoint) -> None:
    """Bounds are finite and rise, and no count is lost, with scales and offsets beyond every double."""
    bounds, counts = folded(point)
    assert len(counts) == len(bounds) + 1 or (not bounds and len(counts) <= 1)
    assert sum(counts) == point.zero_count + sum(point.positive.bucket_counts) + sum(point.negative.bucket_counts)
    assert all(map(math.isfinite, bounds)) and all(low < high for low, high in zip(bounds, bounds[1:], strict=False))
