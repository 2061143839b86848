"""The gauge of streams in flight, as an endpoint receives it."""

from __future__ import annotations

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

import legato
from helpers.servers.receiver import Receiver, receiver
from legato._in_flight import InFlight


def samples(endpoint: Receiver) -> list[list[tuple[dict[str, str], int]]]:
    """Return attributes and value of each point, by request."""
    found = []
    for each in endpoint.accepted:
        (resource,) = ExportMetricsServiceRequest.FromString(each.body).resource_metrics
        assert {item.key: item.value.string_value for item in resource.resource.attributes} == {"service.name": "s"}
        points = [point for scope in resource.scope_metrics for metric in scope.metrics for point in metric.gauge.data_points]
        found.append([({item.key: item.value.string_value for item in point.attributes}, point.as_int) for point in points])
    return found


def test_a_series_ends_with_zero() -> None:
    """A running stream is 1; at its end its series is sent once more with 0, also by the end of the process; then nothing is sent."""
    with receiver() as endpoint:
        gauges = [InFlight(f"{endpoint.url}/v1/metrics", None, {"service.name": "s", "host.name": "h"}) for _ in range(2)]
        for gauge in gauges:
            gauge._report = gauge._reporter()
        with legato.stream(model="flying", vantage="gateway"):
            for gauge in gauges:
                assert gauge._report is not None
                gauge._report()
        for gauge in (*gauges, *gauges):
            gauge.close()
        sent = samples(endpoint)
    assert [[(point["gen_ai.request.model"], point["legato.stream.vantage"], value) for point, value in request] for request in sent] == [
        *[[("flying", "gateway", 1)]] * 2,
        *[[("flying", "gateway", 0)]] * 2,
    ]
    assert len({point["service.instance.id"] for request in sent for point, _ in request}) == 2
