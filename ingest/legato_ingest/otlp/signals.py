"""The signals of OTLP that are received, and the differences between them.

A request of each signal is a message with nested messages down to its items (spans, data points or log records). A ``Signal`` holds the
field numbers on that path, the parser, the converter and the reply, so that the code that splits, parses and answers requests is the same
for all. Log records are acknowledged and not stored; a converter that stores those of an emitter takes the place of ``convert_logs``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest, ExportLogsServiceResponse
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest, ExportMetricsServiceResponse
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest, ExportTraceServiceResponse

from legato_ingest.otlp.batch import Batch
from legato_ingest.otlp.convert import convert_logs, convert_points, convert_spans

__all__ = ["LOGS", "POINTS", "SIGNALS", "SPANS", "Signal"]


@dataclass(frozen=True, slots=True)
class Signal:
    """One signal of OTLP.

    ``service`` is the full name of its service in gRPC, ``counted`` the field of ``Batch`` that counts the items. ``levels`` holds, for
    each level from the request down to an item, the numbers of the fields to follow (proto files of OTLP 1.x). An item has
    at most ``item_bytes_max``. ``name_field`` is the field of the third level that names
    it (the name of a metric); 0 where items have ids. ``isolating`` holds the full names of the repeated fields in which a bad element
    costs only itself.
    """

    path: str
    service: str
    item: str
    counted: str
    request: Any
    response: Any
    rejected_field: str
    convert: Callable[..., Batch]
    levels: tuple[frozenset[int], ...]
    item_bytes_max: int
    name_field: int
    isolating: frozenset[str]

    def __reduce__(self) -> tuple[Callable[[str], Signal], tuple[str]]:
        """Pickle the path: in each process, a signal is one object."""
        return _at_path, (self.path,)

    def count(self, items: int) -> dict[str, Any]:
        """Return the field of a ``Batch`` that counts the items of this signal."""
        return {self.counted: items}

    def reply(self, rejected: int, message: str) -> Any:
        """Return the response: empty when nothing was rejected, else a partial success, which senders must not retry."""
        reply = self.response()
        if rejected:
            setattr(reply.partial_success, self.rejected_field, rejected)
            reply.partial_success.error_message = message
        return reply


# ExportTraceServiceRequest.resource_spans, ResourceSpans.scope_spans, ScopeSpans.spans.
SPANS = Signal(
    path="/v1/traces",
    service="opentelemetry.proto.collector.trace.v1.TraceService",
    item="span",
    counted="spans",
    request=ExportTraceServiceRequest,
    response=ExportTraceServiceResponse,
    rejected_field="rejected_spans",
    convert=convert_spans,
    levels=(frozenset((1,)), frozenset((2,)), frozenset((2,))),
    item_bytes_max=8 * 2**20,
    name_field=0,
    isolating=frozenset(("opentelemetry.proto.trace.v1.ScopeSpans.spans",)),
)
# … .resource_metrics, .scope_metrics, .metrics, Metric.gauge, .sum, .histogram, .exponential_histogram, .summary, .data_points.
POINTS = Signal(
    path="/v1/metrics",
    service="opentelemetry.proto.collector.metrics.v1.MetricsService",
    item="data point",
    counted="points",
    request=ExportMetricsServiceRequest,
    response=ExportMetricsServiceResponse,
    rejected_field="rejected_data_points",
    convert=convert_points,
    levels=(frozenset((1,)), frozenset((2,)), frozenset((2,)), frozenset((5, 7, 9, 10, 11)), frozenset((1,))),
    # The counts of an exponential histogram take eight times their bytes.
    item_bytes_max=2**20,
    name_field=1,
    isolating=frozenset(
        (
            "opentelemetry.proto.metrics.v1.ScopeMetrics.metrics",
            *(
                f"opentelemetry.proto.metrics.v1.{kind}.data_points"
                for kind in ("Gauge", "Sum", "Histogram", "ExponentialHistogram", "Summary")
            ),
        )
    ),
)
# … .resource_logs, .scope_logs, .log_records.
LOGS = Signal(
    path="/v1/logs",
    service="opentelemetry.proto.collector.logs.v1.LogsService",
    item="log record",
    counted="logs",
    request=ExportLogsServiceRequest,
    response=ExportLogsServiceResponse,
    rejected_field="rejected_log_records",
    convert=convert_logs,
    levels=(frozenset((1,)), frozenset((2,)), frozenset((2,))),
    item_bytes_max=8 * 2**20,
    name_field=0,
    isolating=frozenset(("opentelemetry.proto.logs.v1.ScopeLogs.log_records",)),
)
SIGNALS = (SPANS, POINTS, LOGS)


def _at_path(path: str) -> Signal:
    return next(signal for signal in SIGNALS if signal.path == path)
