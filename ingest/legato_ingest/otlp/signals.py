"""The two signals of OTLP that are received, and the differences between them.

A request of either signal is a message with nested messages down to its items (spans or data points). A ``Signal`` holds the field numbers
on that path, the parser, the converter and the reply, so that the code that splits, parses and answers requests is the same for both.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest, ExportMetricsServiceResponse
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest, ExportTraceServiceResponse

from legato_ingest.otlp.batch import Batch
from legato_ingest.otlp.convert import convert_points, convert_spans

__all__ = ["POINTS", "SPANS", "Signal"]


@dataclass(frozen=True, slots=True)
class Signal:
    """One signal of OTLP.

    ``levels`` holds, for each level from the request down to an item, the numbers of the fields to follow (proto files of OTLP 1.x).
    ``tags`` are first bytes of items and of the messages around them, so a body never holds more of these messages than it holds of such
    a byte; a body with more than ``tags_max`` of one is split. ``name_field`` is the field of the third level that names it (the name of
    a metric); 0 where the first two fields are ids (those of a span).
    """

    path: str
    item: str
    request: Any
    response: Any
    rejected_field: str
    convert: Callable[..., Batch]
    levels: tuple[frozenset[int], ...]
    tags: tuple[bytes, ...]
    tags_max: int
    name_field: int

    def reply(self, rejected: int, message: str) -> bytes:
        """Return the body of a 200: empty when nothing was rejected, else a partial success, which senders must not retry."""
        reply = self.response()
        if rejected:
            setattr(reply.partial_success, self.rejected_field, rejected)
            reply.partial_success.error_message = message
        return bytes(reply.SerializeToString())


# ExportTraceServiceRequest.resource_spans, ResourceSpans.scope_spans, ScopeSpans.spans.
SPANS = Signal(
    path="/v1/traces",
    item="span",
    request=ExportTraceServiceRequest,
    response=ExportTraceServiceResponse,
    rejected_field="rejected_spans",
    convert=convert_spans,
    levels=(frozenset((1,)), frozenset((2,)), frozenset((2,))),
    tags=(b"\x12",),
    tags_max=65_536,
    name_field=0,
)
# … .resource_metrics, .scope_metrics, .metrics, Metric.gauge, .sum, .histogram, .exponential_histogram, .summary, .data_points.
POINTS = Signal(
    path="/v1/metrics",
    item="data point",
    request=ExportMetricsServiceRequest,
    response=ExportMetricsServiceResponse,
    rejected_field="rejected_data_points",
    convert=convert_points,
    levels=(frozenset((1,)), frozenset((2,)), frozenset((2,)), frozenset((5, 7, 9, 10, 11)), frozenset((1,))),
    # Attributes and texts have these first bytes too: a point with three attributes has seven of the first.
    tags=(b"\x0a", b"\x12"),
    tags_max=262_144,
    name_field=1,
)
