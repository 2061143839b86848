"""Measurements as OTLP metrics: kinds, times, grouping, and that the same measurements give the same bytes."""

from __future__ import annotations

from legato_gpu_agent.agent.otlp_metrics import metrics_request
from legato_gpu_agent.collectors.measurement import Distribution, Measurement, Timed

NOW = 1_700_000_000_000_000_000
GAUGE = Measurement("g", "1", 0.5, (("a", "b"),))
COUNTER = Measurement("c", "s", 7.0, (), NOW - 5)
HISTOGRAM = Distribution("h", "s", (0.1, 1.0), (3, 0, 2), 4.5, NOW - 5, (("a", "b"),))
ALL: list[Timed] = [(NOW, GAUGE), (NOW, COUNTER), (NOW, HISTOGRAM), (NOW + 1, GAUGE)]


def test_each_kind_of_measurement() -> None:
    """Gauges, cumulative counters with their start, and delta histograms; points of one metric are grouped, host and emitter occur once."""
    (resource,) = metrics_request("node-7", ALL).resource_metrics
    assert [(each.key, each.value.string_value) for each in resource.resource.attributes] == [("host.name", "node-7")]
    (scope,) = resource.scope_metrics
    assert scope.scope.attributes[0].value.string_value.startswith("legato-gpu-agent/")
    gauge, counter, histogram = scope.metrics
    assert [(point.time_unix_nano, point.as_double, point.start_time_unix_nano) for point in gauge.gauge.data_points] == [
        (NOW, 0.5, 0),
        (NOW + 1, 0.5, 0),
    ]
    (total,) = counter.sum.data_points
    assert (counter.unit, counter.sum.is_monotonic, counter.sum.aggregation_temporality) == ("s", True, 2)
    assert (total.as_double, total.start_time_unix_nano) == (7.0, NOW - 5)
    (point,) = histogram.histogram.data_points
    assert histogram.histogram.aggregation_temporality == 1 and (point.count, point.sum) == (5, 4.5)
    assert (list(point.explicit_bounds), list(point.bucket_counts)) == ([0.1, 1.0], [3, 0, 2])


def test_a_start_is_not_after_its_point() -> None:
    """As after a clock that went back; a counter with an unknown start has 0, and a histogram without a sum has none."""
    late: list[Timed] = [(NOW - 9, COUNTER), (NOW, Measurement("u", "1", 1.0, (), 0)), (NOW, Distribution("n", "s", (), (1,), None, NOW))]
    counter, unknown, histogram = metrics_request("h", late).resource_metrics[0].scope_metrics[0].metrics
    assert counter.sum.data_points[0].start_time_unix_nano == NOW - 9
    assert unknown.sum.is_monotonic and unknown.sum.data_points[0].start_time_unix_nano == 0
    assert not histogram.histogram.data_points[0].HasField("sum")


def test_the_same_measurements_give_the_same_bytes() -> None:
    """A cached point carries nothing of its last use over."""
    first, second = (metrics_request("h", ALL).SerializeToString(deterministic=True) for _ in range(2))
    assert first == second
