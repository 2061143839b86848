"""From an OTLP request to rows: what a span becomes, what is refused, and that neighbours never pay."""

from __future__ import annotations

import base64
import math
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from helpers.builders.spans import SECOND_NS, native_span, request, scope_of, steady_timeline
from legato._timeline import pack
from legato_ingest.columns import REJECTED, STREAM_REVS, STREAM_SOCKETS
from legato_ingest.otlp.batch import Batch, Limits
from legato_ingest.otlp.convert import convert_spans

NOW_NS = 1_795_240_000 * SECOND_NS
DAY_NS = 86_400 * SECOND_NS


def rows(body: ExportTraceServiceRequest, limits: Limits | None = None) -> Batch:
    """The rows of a request received at ``NOW_NS``."""
    return convert_spans(body, tenant="", now_ns=NOW_NS, limits=limits or Limits())


def only_row(body: ExportTraceServiceRequest) -> dict[str, Any]:
    """The one row of a request from which nothing is refused."""
    batch = rows(body)
    assert batch.rejected.num_rows == 0, batch.rejected.to_pylist()
    (row,) = batch.revs.to_pylist()
    return dict(row)


def span(body: ExportTraceServiceRequest, attributes: dict[str, Any] | None = None, **more: Any) -> Span:
    """A native span a minute before ``NOW_NS``."""
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


def test_a_native_span_is_a_whole_row() -> None:
    """Identity, facts, statistics and the timeline itself."""
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


def test_base64_is_as_good_as_bytes() -> None:
    """An SDK that cannot send bytes sends the same in base64."""
    body = request()
    span(body, {"legato.stream.timeline": base64.b64encode(steady_timeline()).decode()})
    assert only_row(body)["chunks"] == 20


def test_a_snapshot_is_a_rev_of_its_stream() -> None:
    """Its row has the stream's span id, is not ended, and says when the next is due."""
    body = request()
    span(
        body,
        {
            "legato.stream.outcome": "running",
            "legato.stream.span_id": "00f067aa0ba902b7",
            "legato.stream.rev": 2,
            "legato.stream.next_due": 90.0,
        },
        name="legato.stream.snapshot",
    )
    row = only_row(body)
    assert row["span_id"].hex() == "00f067aa0ba902b7"
    assert (row["rev"], row["ended"], row["outcome"], row["next_due_us"]) == (2, False, "running", 90_000_000)
    assert row["gap_open_us"] is None


def test_a_cancel_counts_the_open_gap() -> None:
    """The wait before a cancel is a gap of the row."""
    body = request()
    span(body, {"legato.stream.outcome": "client_cancel"}, duration_ns=3 * SECOND_NS)
    row = only_row(body)
    assert row["gap_open_us"] == row["gap_max_us"] == 3_000_000 - (400_000 + 18 * 25_000)
    assert row["stalls_1000ms"] == 1


def test_a_semconv_span_says_what_it_cannot_know() -> None:
    """A summary by the semantic conventions is a row whose gap figures are NULL, never 0."""
    body = request({"telemetry.sdk.name": "opentelemetry"}, {"x": 1})
    scope_of(body).spans.add(
        trace_id=b"t" * 16, span_id=b"s" * 8, name="chat m", kind=Span.SPAN_KIND_CLIENT, start_time_unix_nano=NOW_NS,
        end_time_unix_nano=NOW_NS + SECOND_NS,
    )  # fmt: skip
    made = scope_of(body).spans[0]
    made.attributes.add(key="gen_ai.request.model").value.string_value = "m"
    made.attributes.add(key="gen_ai.response.time_to_first_chunk").value.double_value = 0.25
    row = only_row(body)
    assert (row["ttft_us"], row["outcome"], row["flags"]) == (250_000, "complete", ["ttft_any_chunk"])
    unknown = "ttfo_us ttfb_us chunks gaps gap_max_us gap_p99_us stalls_250ms excess_250ms_us jitter_ratio content_chunks gap_sum_us"
    assert {name: row[name] for name in unknown.split()} == dict.fromkeys(unknown.split())
    assert row["dt_us"] == []


def test_spans_of_others_are_ignored() -> None:
    """A database call is acknowledged and not stored; so is a model's answer that was not streamed."""
    body = request()
    scope_of(body).spans.add(trace_id=b"t" * 16, span_id=b"s" * 8, name="SELECT", start_time_unix_nano=NOW_NS, end_time_unix_nano=NOW_NS)
    plain = scope_of(body).spans.add(trace_id=b"t" * 16, span_id=b"u" * 8, start_time_unix_nano=NOW_NS, end_time_unix_nano=NOW_NS)
    plain.attributes.add(key="gen_ai.operation.name").value.string_value = "chat"
    batch = rows(body)
    assert (batch.spans, batch.ignored, batch.revs.num_rows, batch.rejected.num_rows) == (2, 2, 0, 0)


BEYOND_THE_END = bytes.fromhex("010102000000010d00000000010000000100020005000000")
POISON: list[tuple[str, str, dict[str, Any], dict[str, Any]]] = [
    ("no trace id", "identity", {}, {"trace_id": b""}),
    ("zero trace id", "identity", {}, {"trace_id": bytes(16)}),
    ("short span id", "identity", {}, {"span_id": b"123"}),
    ("zero span id", "identity", {}, {"span_id": bytes(8)}),
    ("no start", "time", {}, {"start_ns": 0}),
    ("beyond 2262", "time", {}, {"start_ns": 2**63 + 5}),
    ("too old", "retention", {}, {"start_ns": NOW_NS - 91 * DAY_NS}),
    ("next week", "retention", {}, {"start_ns": NOW_NS + 7 * DAY_NS}),
    ("NaN", "attribute", {"legato.stream.ttfb": math.nan}, {}),
    ("endless", "attribute", {"gen_ai.response.time_to_first_chunk": math.inf}, {}),
    ("negative", "attribute", {"legato.stream.ttfb": -1.0}, {}),
    ("text for a number", "attribute", {"gen_ai.usage.output_tokens": "many"}, {}),
    ("number for text", "attribute", {"gen_ai.request.model": 4}, {}),
    ("port", "attribute", {"client.port": 70_000}, {}),
    ("negative tokens", "attribute", {"gen_ai.usage.input_tokens": -5}, {}),
    ("no such vantage", "attribute", {"legato.stream.vantage": "moon"}, {}),
    ("no such outcome", "attribute", {"legato.stream.outcome": "great"}, {}),
    ("running without being a snapshot", "attribute", {"legato.stream.outcome": "running"}, {}),
    ("not base64", "attribute", {"legato.stream.timeline": "%%%"}, {}),
    ("a list for a timeline", "attribute", {"legato.stream.timeline": ["x"]}, {}),
    ("snapshot of nobody", "attribute", {"legato.stream.span_id": "xyz"}, {"name": "legato.stream.snapshot"}),
    ("bad version", "timeline", {"legato.stream.timeline": b"\x09" + steady_timeline()[1:]}, {}),
    ("truncated", "timeline", {"legato.stream.timeline": steady_timeline()[:-3]}, {}),
    ("empty", "timeline", {"legato.stream.timeline": b""}, {}),
    ("lying about chunks", "timeline", {"legato.stream.timeline": steady_timeline()[:2] + b"\xff\xff\0\0" + steady_timeline()[6:]}, {}),
    ("65,537 chunks", "timeline", {"legato.stream.timeline": b"\x01\x01\x01\0\x01\0\x01\x07\0\0\0" + bytes(7)}, {}),
    ("an exception beyond the end", "timeline", {"legato.stream.timeline": BEYOND_THE_END}, {}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "reason", "attributes", "more"), POISON, ids=[case[0] for case in POISON])
def test_a_poison_span_never_costs_its_neighbours(name: str, reason: str, attributes: dict[str, Any], more: dict[str, Any]) -> None:
    """It is rejected with its reason; the spans before and after it are stored whole; a retry is rejected alike."""
    body = request()
    before = span(body)
    span(body, {**attributes, "gen_ai.conversation.id": "a secret value"}, **more)
    after = span(body)
    batch = rows(body)
    assert [row["span_id"] for row in batch.revs.to_pylist()] == [before.span_id, after.span_id]
    (rejection,) = batch.rejected.to_pylist()
    assert rejection["reason"] == reason, rejection
    assert rejection["detail"] and "secret" not in str(rejection)
    assert batch.rejected.drop_columns(["received_at"]).equals(
        convert_spans(body, tenant="", now_ns=NOW_NS + 1, limits=Limits()).rejected.drop_columns(["received_at"])
    )


def test_a_span_that_ends_before_it_starts_is_rejected() -> None:
    """By one nanosecond is enough."""
    body = request()
    made = span(body)
    made.end_time_unix_nano = made.start_time_unix_nano - 1
    assert rows(body).rejected.to_pylist()[0]["detail"] == "the span ends before it starts"


def test_the_next_hour_is_stored_and_flagged() -> None:
    """A wrong clock is no reason to lose a stream."""
    body = request()
    span(body, start_ns=NOW_NS + 3_600 * SECOND_NS)
    assert only_row(body)["flags"] == ["future"]


def test_retention_zero_takes_any_time() -> None:
    """150 days in one request."""
    body = request()
    for day in range(150):
        span(body, start_ns=NOW_NS - day * DAY_NS)
    assert rows(body).rejected.num_rows == 59
    assert rows(body, Limits(retention_days=0)).revs.num_rows == 150


def test_a_tiny_timeline_cannot_claim_more_than_the_budget() -> None:
    """27 bytes may declare 65,536 chunks; what a request declares in all is bounded, and what fits is stored."""
    tiny = pack([1] * 65_536)
    assert len(tiny) < 64
    body = request()
    for _ in range(5):
        span(body, {"legato.stream.timeline": tiny})
    batch = rows(body, Limits(chunks_per_request_max=3 * 65_536, chunks_per_pass_max=65_536))
    assert (batch.revs.num_rows, batch.chunks) == (3, 3 * 65_536)
    assert {row["reason"] for row in batch.rejected.to_pylist()} == {"chunk_budget"}


def test_passes_change_nothing() -> None:
    """The rows do not depend on how many streams are computed together."""
    rng = random.Random(4)
    body = request()
    for i in range(40):
        times = sorted(rng.randrange(3_000_000) for _ in range(rng.randrange(60)))
        tokens = [1] * len(times) if i % 3 == 0 else None
        span(body, {"legato.stream.timeline": pack(times, [5] * len(times), tokens)}, rng=rng)
    whole = rows(body).revs
    assert rows(body, Limits(chunks_per_pass_max=1)).revs.combine_chunks().equals(whole.combine_chunks())
    assert rows(body, Limits(chunks_per_pass_max=100)).revs.combine_chunks().equals(whole.combine_chunks())


def test_an_empty_request_has_no_rows() -> None:
    """And is no error."""
    batch = rows(ExportTraceServiceRequest())
    assert (batch.spans, batch.revs.num_rows, batch.rejected.num_rows) == (0, 0, 0)


@given(st.lists(st.one_of(st.binary(max_size=200), st.integers(0, 400).map(lambda n: steady_timeline(25)[:n])), max_size=6))
def test_any_bytes_are_a_row_or_a_rejection(blobs: list[bytes]) -> None:
    """Whatever stands in the timeline, every span comes out exactly once."""
    body = request()
    for blob in blobs:
        span(body, {"legato.stream.timeline": blob})
    batch = rows(body)
    assert batch.revs.num_rows + batch.rejected.num_rows == len(blobs)


@given(st.data())
def test_a_flipped_bit_never_harms_the_neighbour(data: st.DataObject) -> None:
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


def test_socket_evidence_is_kept_apart() -> None:
    """Only the reads that have any, and only for streams that do."""
    body = request()
    times = [10_000 * i for i in range(1, 6)]
    span(body)
    span(body, {"legato.stream.timeline": pack(times, sockets={10: [0, 0, 501, 0, 2], 11: [0, 0, 61, 0, 0]})})
    (row,) = convert_spans(body, tenant="", now_ns=NOW_NS, limits=Limits()).sockets.to_pylist()
    assert row["span_id"] == scope_of(body).spans[1].span_id
    assert (row["at"], row["queued_bytes"], row["window_bytes"], row["idle_ms"]) == ([2, 4], [501, 2], [61, 0], [0, 0])
