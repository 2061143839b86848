"""Rows of streams: the columns, the values of a complete span, open gaps, and socket evidence."""

from __future__ import annotations

from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from helpers.builders.spans import SECOND_NS, native_span, request, scope_of
from legato._timeline import pack
from legato_ingest.columns import REJECTED, STREAM_REVS, STREAM_SOCKETS
from legato_ingest.otlp.batch import Batch, Limits
from legato_ingest.otlp.convert import convert_spans

NOW_NS = 1_795_240_000 * SECOND_NS


def rows(body: ExportTraceServiceRequest) -> Batch:
    """Return the rows of a request received at ``NOW_NS``."""
    return convert_spans(body, tenant="", now_ns=NOW_NS, limits=Limits())


def only_row(body: ExportTraceServiceRequest) -> dict[str, Any]:
    """Return the only row of a request without rejections."""
    batch = rows(body)
    assert batch.rejected.num_rows == 0, batch.rejected.to_pylist()
    (row,) = batch.revs.to_pylist()
    return dict(row)


def span(body: ExportTraceServiceRequest, attributes: dict[str, Any] | None = None, **more: Any) -> Span:
    """Add a native span that started one minute before ``NOW_NS``."""
    more.setdefault("start_ns", NOW_NS - 60 * SECOND_NS)
    return native_span(body, attributes, **more)


def test_rows_have_the_declared_columns() -> None:
    """The rows of each table have the columns of its declaration, in its order, with any number of rows."""
    body = request()
    span(body, {"legato.stream.timeline": pack([10, 20], sockets={10: [1, 0]})})
    span(body, {"legato.stream.timeline": b""})
    for batch in (rows(body), rows(request())):
        for found, table in ((batch.revs, STREAM_REVS), (batch.sockets, STREAM_SOCKETS), (batch.rejected, REJECTED)):
            assert found.schema == table.schema


def test_a_native_span_fills_a_row() -> None:
    """Identity, fields of the record, statistics, and the timeline itself; the receive time is left to the committer."""
    body = request({"service.version": "7"}, {"legato.emitter": "legato-python/9", "legato.stream.clock": "boot:1:2"})
    made = span(body, {"client.address": "10.0.0.9", "client.port": 41_000})
    row = only_row(body)
    assert row["trace_id"] == made.trace_id and row["span_id"] == made.span_id
    assert row["otlp_bytes"] == made.ByteSize()
    assert (row["emitter"], row["clock"], row["service_version"]) == ("legato-python/9", "boot:1:2", "7")
    assert (row["outcome"], row["ended"], row["rev"], row["finish_reason"]) == ("complete", True, 1, "stop")
    assert (row["ttft_us"], row["ttfb_us"], row["gap_max_us"], row["gaps"], row["chunks"]) == (425_000, 3_000, 25_000, 17, 20)
    assert (len(row["dt_us"]), row["chunk_kind"][0], row["chunk_kind"][-1], row["chunk_tokens"]) == (20, 0, 7, [])
    assert row["content_bytes"] == 72
    assert row["tokens_per_chunk"] == 1
    assert (row["parent_span_id"], row["received_at"]) == (bytes(8), None)


def test_dropped_chunks_are_counted_as_chunks() -> None:
    """The timeline holds 20 chunks, and the SDK reports three more that it could not keep."""
    body = request()
    span(body, {"legato.stream.chunks_dropped": 3})
    row = only_row(body)
    assert (row["chunks"], row["chunks_dropped"], len(row["dt_us"])) == (23, 3, 20)


def test_rows_with_and_without_a_timeline_do_not_mix() -> None:
    """In one request, a span without a timeline has the TTFT and chunks of its summary, and the other those of its timeline."""
    body = request()
    span(body, {"gen_ai.response.time_to_first_chunk": 0.1})
    span(body, {"gen_ai.response.time_to_first_chunk": 0.1, "legato.stream.chunks": 7}, drop=["legato.stream.timeline"])
    with_timeline, without = rows(body).revs.to_pylist()
    assert (with_timeline["ttft_us"], with_timeline["chunks"], with_timeline["gaps"]) == (425_000, 20, 17)
    assert (without["ttft_us"], without["chunks"], without["gaps"], without["dt_us"]) == (100_000, 7, None, [])


def test_a_cancelled_stream_counts_its_open_gap() -> None:
    """The wait before a cancel is a gap of the row."""
    body = request()
    span(body, {"legato.stream.outcome": "client_cancel"}, duration_ns=3 * SECOND_NS)
    row = only_row(body)
    assert row["gap_open_us"] == row["gap_max_us"] == 3_000_000 - (400_000 + 18 * 25_000)
    assert row["stalls_1000ms"] == 1


def test_the_open_gap_after_dropped_chunks_is_unknown() -> None:
    """The last chunk of the timeline was not the last one: no wait, no tail and no ratio of tokens to chunks is known from there on."""
    body = request()
    cancelled = {"legato.stream.outcome": "client_cancel"}
    span(body, cancelled, duration_ns=300 * SECOND_NS)
    span(body, {**cancelled, "legato.stream.chunks_dropped": 9}, duration_ns=300 * SECOND_NS)
    whole, cut = rows(body).revs.to_pylist()
    assert (whole["gap_open_us"], whole["stalls_250ms"], cut["gap_open_us"]) == (300_000_000 - 850_000, 1, None)
    assert (cut["gap_max_us"], cut["stalls_250ms"], cut["excess_250ms_us"], cut["gaps"]) == (25_000, 0, 0, whole["gaps"] - 1)
    for name in ("tokens_per_chunk", "tail_flush"):
        assert whole[name] is not None and cut[name] is None, name
    assert cut["head_burst"] == whole["head_burst"]


def test_socket_evidence_has_its_own_table() -> None:
    """It holds only the reads with evidence, and only streams that have any."""
    body = request()
    times = [10_000 * i for i in range(1, 6)]
    span(body)
    span(body, {"legato.stream.timeline": pack(times, sockets={10: [0, 0, 501, 0, 2], 11: [0, 0, 61, 0, 0]})})
    (row,) = rows(body).sockets.to_pylist()
    assert row["span_id"] == scope_of(body).spans[1].span_id
    assert (row["at"], row["queued_bytes"], row["window_bytes"], row["idle_ms"]) == ([2, 4], [501, 2], [61, 0], [0, 0])
