"""The replies of all signals: empty on success, a partial success with the number of rejected items otherwise."""

from __future__ import annotations

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceResponse
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from legato_ingest.otlp.signals import LOGS, POINTS, SIGNALS, SPANS, Signal


@pytest.mark.parametrize("signal", SIGNALS, ids=lambda signal: signal.item)
def test_a_success_is_empty(signal: Signal) -> None:
    """The specification demands a partial success to be unset when nothing was rejected."""
    assert signal.reply(0, "unused").SerializeToString() == b""


def test_a_partial_success_counts_rejected_items() -> None:
    """In the field of the signal, with the message."""
    spans, points, logs = SPANS.reply(2, "two"), POINTS.reply(3, "three"), LOGS.reply(4, "four")
    assert isinstance(spans, ExportTraceServiceResponse) and isinstance(points, ExportMetricsServiceResponse)
    assert (spans.partial_success.rejected_spans, spans.partial_success.error_message) == (2, "two")
    assert (points.partial_success.rejected_data_points, points.partial_success.error_message) == (3, "three")
    assert (logs.partial_success.rejected_log_records, logs.partial_success.error_message) == (4, "four")
