"""Batches with a receive time, for tests and benchmarks that insert rows without the committer."""

from __future__ import annotations

from dataclasses import replace

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from legato_ingest.otlp.batch import Batch, Limits
from legato_ingest.otlp.convert import convert_points, convert_spans
from legato_ingest.write.group_insert import with_received_at

__all__ = ["received_points", "received_spans"]


def received_spans(body: ExportTraceServiceRequest, *, tenant: str, now_ns: int, limits: Limits) -> Batch:
    """Return the rows of a request of spans that was received and stored at ``now_ns``."""
    return _received(convert_spans(body, tenant=tenant, now_ns=now_ns, limits=limits), now_ns)


def received_points(body: ExportMetricsServiceRequest, *, tenant: str, now_ns: int, limits: Limits) -> Batch:
    """Return the rows of a request of metrics that was received and stored at ``now_ns``."""
    return _received(convert_points(body, tenant=tenant, now_ns=now_ns, limits=limits), now_ns)


def _received(batch: Batch, now_ns: int) -> Batch:
    names = ("revs", "silences", "steps", "requests", "samples", "rejected")
    return replace(batch, **{name: with_received_at(getattr(batch, name), now_ns // 1_000_000) for name in names})
