"""Read complete tables, for comparison row by row."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from helpers.builders.spans import scope_of
from legato_ingest.storage import Store

__all__ = ["rejected", "requests_of_one_span", "streams"]


def streams(store: Store, where: str = "1") -> list[dict[str, Any]]:
    """The rows of the view `streams` in key order, without the receive time."""
    return _rows(store, f"SELECT * EXCEPT (received_at) FROM streams WHERE {where} ORDER BY tenant, start_time, trace_id, span_id")


def rejected(store: Store, where: str = "1") -> list[dict[str, Any]]:
    """The rows of the table `rejected`, sorted, without the receive time."""
    return _rows(store, f"SELECT * EXCEPT (received_at) FROM rejected FINAL WHERE {where} ORDER BY ALL")


def _rows(store: Store, sql: str) -> list[dict[str, Any]]:
    table = store.select_arrow(sql)
    ids = {field.name for field in table.schema if pa.types.is_fixed_size_binary(field.type)}
    return [{name: value if name in ids else _text(value) for name, value in row.items()} for row in table.to_pylist()]


def _text(value: Any) -> Any:
    """Decode strings, which the engine returns as bytes."""
    if isinstance(value, list):
        return [_text(item) for item in value]
    return value.decode() if isinstance(value, bytes) else value


def requests_of_one_span(body: ExportTraceServiceRequest) -> list[ExportTraceServiceRequest]:
    """The same spans, each in a separate request."""
    out = []
    for span in scope_of(body).spans:
        one = ExportTraceServiceRequest()
        one.CopyFrom(body)
        del scope_of(one).spans[:]
        scope_of(one).spans.append(span)
        out.append(one)
    return out
