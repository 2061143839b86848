"""What tells spans from data points on their way in: all that the two doors do not share.

One idea: a request of either signal is a message of messages down to its items (spans, data points), so whoever cuts, parses and answers it
is told the way down, the parser and the reply, and does the same for both. It decides nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest, ExportMetricsServiceResponse
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest, ExportTraceServiceResponse

from legato_ingest.otlp.stream_rows import Batch, rows_of, sample_rows_of

__all__ = ["POINTS", "SPANS", "Signal"]


@dataclass(frozen=True, slots=True)
class Signal:
    """One signal of OTLP. ``levels`` are the numbers of the fields that lead from the request to an item (proto files of OTLP 1.x)."""

    path: str
    item: str
    request: Any
    response: Any
    rejected: str
    rows: Callable[..., Batch]
    levels: tuple[frozenset[int], ...]
    # Items, and what is around them, begin with these bytes: no body has more of them than it has of the bytes. Beyond so many it is cut.
    marks: tuple[bytes, ...]
    marks_max: int
    # The field of the third level that names it (a metric's name); 0 where its first two fields are ids (a span's).
    name: int

    def reply(self, rejected: int, message: str) -> bytes:
        """A 200's body: empty when everything was taken, else a partial success (which senders must not retry)."""
        reply = self.response()
        if rejected:
            setattr(reply.partial_success, self.rejected, rejected)
            reply.partial_success.error_message = message
        return bytes(reply.SerializeToString())


# ExportTraceServiceRequest.resource_spans, ResourceSpans.scope_spans, ScopeSpans.spans.
SPANS = Signal(
    path="/v1/traces",
    item="span",
    request=ExportTraceServiceRequest,
    response=ExportTraceServiceResponse,
    rejected="rejected_spans",
    rows=rows_of,
    levels=(frozenset((1,)), frozenset((2,)), frozenset((2,))),
    marks=(b"\x12",),
    marks_max=65_536,
    name=0,
)
# … .resource_metrics, .scope_metrics, .metrics, Metric.gauge, .sum, .histogram, .exponential_histogram, .summary, .data_points.
POINTS = Signal(
    path="/v1/metrics",
    item="data point",
    request=ExportMetricsServiceRequest,
    response=ExportMetricsServiceResponse,
    rejected="rejected_data_points",
    rows=sample_rows_of,
    levels=(frozenset((1,)), frozenset((2,)), frozenset((2,)), frozenset((5, 7, 9, 10, 11)), frozenset((1,))),
    # These bytes begin attributes and texts too: a point of three attributes has seven of the first.
    marks=(b"\x0a", b"\x12"),
    marks_max=262_144,
    name=1,
)
