"""Validation of spans: what is rejected for which reason, what is ignored, and that no span affects its neighbours."""

from __future__ import annotations

import math
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from helpers.builders.spans import SECOND_NS, native_span, request, scope_of, steady_timeline
from legato_ingest.otlp.batch import DAY_NS, Batch, Limits
from legato_ingest.otlp.convert import convert_spans

NOW_NS = 1_795_240_000 * SECOND_NS


def rows(body: ExportTraceServiceRequest, limits: Limits | None = None) -> Batch:
    """Return the rows of a request received at ``NOW_NS``."""
    return convert_spans(body, tenant="", now_ns=NOW_NS, limits=limits or Limits())


def span(body: ExportTraceServiceRequest, attributes: dict[str, Any] | None = None, **more: Any) -> Span:
    """Add a native span that started one minute before ``NOW_NS``."""
    more.setdefault("start_ns", NOW_NS - 60 * SECOND_NS)
    return native_span(body, attributes, **more)


def test_other_spans_are_ignored() -> None:
    """A database call, and a response that was not streamed, are acknowledged and not stored."""
    body = request()
    scope_of(body).spans.add(trace_id=b"t" * 16, span_id=b"s" * 8, name="SELECT", start_time_unix_nano=NOW_NS, end_time_unix_nano=NOW_NS)
    plain = scope_of(body).spans.add(trace_id=b"t" * 16, span_id=b"u" * 8, start_time_unix_nano=NOW_NS, end_time_unix_nano=NOW_NS)
    plain.attributes.add(key="gen_ai.operation.name").value.string_value = "chat"
    batch = rows(body)
    assert (batch.spans, batch.ignored, batch.revs.num_rows, batch.rejected.num_rows) == (2, 2, 0, 0)


BEYOND_THE_END = bytes.fromhex("010102000000010d00000000010000000100020005000000")
BAD: list[tuple[str, str, dict[str, Any], dict[str, Any]]] = [
    ("no trace id", "identity", {}, {"trace_id": b""}),
    ("zero trace id", "identity", {}, {"trace_id": bytes(16)}),
    ("short span id", "identity", {}, {"span_id": b"123"}),
    ("zero span id", "identity", {}, {"span_id": bytes(8)}),
    ("no start", "time", {}, {"start_ns": 0}),
    ("beyond 2262", "time", {}, {"start_ns": 2**63 + 5}),
    ("too old", "retention", {}, {"start_ns": NOW_NS - 91 * DAY_NS}),
    ("next week", "retention", {}, {"start_ns": NOW_NS + 7 * DAY_NS}),
    ("NaN", "attribute", {"legato.stream.ttfb": math.nan}, {}),
    ("infinite", "attribute", {"gen_ai.response.time_to_first_chunk": math.inf}, {}),
    ("negative", "attribute", {"legato.stream.ttfb": -1.0}, {}),
    ("text for a number", "attribute", {"gen_ai.usage.output_tokens": "many"}, {}),
    ("number for text", "attribute", {"gen_ai.request.model": 4}, {}),
    ("port", "attribute", {"client.port": 70_000}, {}),
    ("negative tokens", "attribute", {"gen_ai.usage.input_tokens": -5}, {}),
    ("unknown vantage", "attribute", {"legato.stream.vantage": "moon"}, {}),
    ("unknown outcome", "attribute", {"legato.stream.outcome": "great"}, {}),
    ("running without being a snapshot", "attribute", {"legato.stream.outcome": "running"}, {}),
    ("not base64", "attribute", {"legato.stream.timeline": "%%%"}, {}),
    ("a list for a timeline", "attribute", {"legato.stream.timeline": ["x"]}, {}),
    ("snapshot of an invalid span id", "attribute", {"legato.stream.span_id": "xyz"}, {"name": "legato.stream.snapshot"}),
    ("bad version", "timeline", {"legato.stream.timeline": b"\x09" + steady_timeline()[1:]}, {}),
    ("truncated", "timeline", {"legato.stream.timeline": steady_timeline()[:-3]}, {}),
    ("empty", "timeline", {"legato.stream.timeline": b""}, {}),
    ("wrong number of chunks", "timeline", {"legato.stream.timeline": steady_timeline()[:2] + b"\xff\xff\0\0" + steady_timeline()[6:]}, {}),
    ("65,537 chunks", "timeline", {"legato.stream.timeline": b"\x01\x01\x01\0\x01\0\x01\x07\0\0\0" + bytes(7)}, {}),
    ("an exception beyond the end", "timeline", {"legato.stream.timeline": BEYOND_THE_END}, {}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "reason", "attributes", "more"), BAD, ids=[case[0] for case in BAD])
def test_a_bad_span_is_rejected_alone(name: str, reason: str, attributes: dict[str, Any], more: dict[str, Any]) -> None:
    """It is rejected with its reason, the spans before and after it are stored complete, and a retry is the same rejection."""
    body = request()
    before = span(body)
    span(body, {**attributes, "gen_ai.conversation.id": "a secret value"}, **more)
    after = span(body)
    batch = rows(body)
    assert [row["span_id"] for row in batch.revs.to_pylist()] == [before.span_id, after.span_id]
    (rejection,) = batch.rejected.to_pylist()
    assert rejection["reason"] == reason, rejection
    assert rejection["detail"] and "secret" not in str(rejection)
    assert batch.rejected.equals(convert_spans(body, tenant="", now_ns=NOW_NS + 1, limits=Limits()).rejected)


def test_a_span_that_ends_before_it_starts_is_rejected() -> None:
    """One nanosecond is enough."""
    body = request()
    made = span(body)
    made.end_time_unix_nano = made.start_time_unix_nano - 1
    assert rows(body).rejected.to_pylist()[0]["detail"] == "the span ends before it starts"


def test_a_start_in_the_next_hour_is_stored_and_flagged() -> None:
    """A wrong clock does not cost the stream."""
    body = request()
    span(body, start_ns=NOW_NS + 3_600 * SECOND_NS)
    batch = rows(body)
    assert batch.revs["flags"].to_pylist() == [["future"]] and batch.rejected.num_rows == 0


def test_retention_zero_accepts_any_time() -> None:
    """150 days in one request."""
    body = request()
    for day in range(150):
        span(body, start_ns=NOW_NS - day * DAY_NS)
    assert rows(body, Limits(days_max=150)).rejected.num_rows == 59
    assert rows(body, Limits(days_max=150, retention_days=0)).revs.num_rows == 150
