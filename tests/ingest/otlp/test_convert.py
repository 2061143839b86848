"""Conversion of parsed requests: budgets of chunks, passes, empty requests, any bytes as a timeline, memory for attributes."""

from __future__ import annotations

import random
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from helpers.builders.spans import SECOND_NS, any_value, native_span, request, steady_timeline
from legato._timeline import pack
from legato_ingest.otlp.batch import Batch, Limits
from legato_ingest.otlp.convert import convert_points, convert_spans

NOW_NS = 1_795_240_000 * SECOND_NS


def rows(body: ExportTraceServiceRequest, limits: Limits | None = None) -> Batch:
    """Return the rows of a request received at ``NOW_NS``."""
    return convert_spans(body, tenant="", now_ns=NOW_NS, limits=limits or Limits())


def span(body: ExportTraceServiceRequest, attributes: dict[str, Any] | None = None, **more: Any) -> Span:
    """Add a native span that started one minute before ``NOW_NS``."""
    more.setdefault("start_ns", NOW_NS - 60 * SECOND_NS)
    return native_span(body, attributes, **more)


def test_a_tiny_timeline_cannot_exceed_the_budget_of_chunks() -> None:
    """27 bytes may declare 65,536 chunks. The sum over a request is limited, and spans within the limit are stored."""
    tiny = pack([1] * 65_536)
    assert len(tiny) < 64
    body = request()
    for _ in range(5):
        span(body, {"legato.stream.timeline": tiny})
    batch = rows(body, Limits(chunks_per_request_max=3 * 65_536, chunks_per_pass_max=65_536))
    assert (batch.revs.num_rows, batch.chunks) == (3, 3 * 65_536)
    assert {row["reason"] for row in batch.rejected.to_pylist()} == {"chunk_budget"}


def test_passes_do_not_change_the_rows() -> None:
    """The rows do not depend on how many streams are computed together."""
    rng = random.Random(4)
    body = request()
    for i in range(40):
        times = sorted(rng.randrange(3_000_000) for _ in range(rng.randrange(60)))
        tokens = [1] * len(times) if i % 3 == 0 else None
        span(body, {"legato.stream.timeline": pack(times, [5] * len(times), tokens)}, rng=rng)
    expected = rows(body).revs
    assert rows(body, Limits(chunks_per_pass_max=1)).revs.combine_chunks().equals(expected.combine_chunks())
    assert rows(body, Limits(chunks_per_pass_max=100)).revs.combine_chunks().equals(expected.combine_chunks())


def test_an_empty_request_has_no_rows() -> None:
    """It is not an error, and its batch equals the empty batch."""
    points = convert_points(ExportMetricsServiceRequest(), tenant="", now_ns=NOW_NS, limits=Limits())
    for batch in (rows(ExportTraceServiceRequest()), points):
        assert (batch.spans, batch.points, batch.revs.num_rows, batch.rejected.num_rows) == (0, 0, 0, 0)
        assert batch == Batch()


@given(st.lists(st.one_of(st.binary(max_size=200), st.integers(0, 400).map(lambda n: steady_timeline(25)[:n])), max_size=6))
def test_any_bytes_become_a_row_or_a_rejection(blobs: list[bytes]) -> None:
    """With any bytes as its timeline, every span is in the result exactly once."""
    body = request()
    for blob in blobs:
        span(body, {"legato.stream.timeline": blob})
    batch = rows(body)
    assert batch.revs.num_rows + batch.rejected.num_rows == len(blobs)


@given(st.data())
def test_a_flipped_bit_never_affects_the_neighbours(data: st.DataObject) -> None:
    """One damaged timeline between two good ones."""
    blob = bytearray(steady_timeline(30))
    for _ in range(data.draw(st.integers(1, 4))):
        blob[data.draw(st.integers(0, len(blob) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    body = request()
    good = [span(body), span(body, {"legato.stream.timeline": bytes(blob)}), span(body)]
    batch = rows(body)
    stored = {row["span_id"]: row for row in batch.revs.to_pylist()}
    assert batch.revs.num_rows + batch.rejected.num_rows == 3
    for each in (good[0], good[2]):
        assert stored[each.span_id]["gap_max_us"] == 25_000


@pytest.mark.parametrize("each_has_a_scope", [False, True])
def test_attributes_of_a_resource_are_not_copied_for_each_span(each_has_a_scope: bool) -> None:
    """A body of 130 KB with 2,000 attributes and 1,000 streams would take 40 MB."""
    body = request({f"attribute-{number}": "" for number in range(2_000)})
    for number in range(1, 1_001):
        scope = body.resource_spans[0].scope_spans.add() if each_has_a_scope else body.resource_spans[0].scope_spans[0]
        if each_has_a_scope:
            scope.scope.attributes.add(key="a")
        span = scope.spans.add(trace_id=number.to_bytes(16), span_id=number.to_bytes(8))
        span.start_time_unix_nano = span.end_time_unix_nano = NOW_NS
        for key, value in {"legato.stream.vantage": "client", "legato.stream.outcome": "complete"}.items():
            span.attributes.add(key=key, value=any_value(value))
    tracemalloc.start()
    try:
        rows = convert_spans(body, tenant="", now_ns=NOW_NS, limits=Limits()).revs
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert rows.num_rows == 1_000 and rows["service_name"].unique().to_pylist() == ["test"]
    assert peak_bytes < 15_000_000
