"""The replies of both signals: empty on success, a partial success with the number of rejected items otherwise."""

from __future__ import annotations

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceResponse
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from legato_ingest.otlp.signals import POINTS, SPANS, Signal


@pytest.mark.parametrize("signal", [SPANS, POINTS], ids=lambda signal: signal.item)
def test_a_success_is_empty(signal: Signal) -> None:
    """The specification demands a partial success to be unset when nothing was rejected."""
    assert signal.reply(0, "unused") == b""


def test_a_partial_success_counts_rejected_items() -> None:
    """In the field of the signal, with the message."""
    spans = ExportTraceServiceResponse.FromString(SPANS.reply(2, "two")).partial_success
    points = ExportMetricsServiceResponse.FromString(POINTS.reply(3, "three")).partial_success
    assert (spans.rejected_spans, spans.error_message) == (2, "two")
    assert (points.rejected_data_points, points.error_message) == (3, "three")
