"""The request splitter on spans: equal rows with and without splitting, faults that affect one span only, and bounded memory."""

from __future__ import annotations

import random
import resource
import time
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from helpers.builders.converted import convert_body
from helpers.builders.spans import native_span, request, scope_of
from helpers.platform.examples import examples
from legato_ingest.errors import BadRequest, LegatoError, TooLarge
from legato_ingest.otlp import bodies, split
from legato_ingest.otlp.batch import Batch, Limits
from legato_ingest.otlp.convert import convert_spans
from legato_ingest.otlp.protobuf import message
from legato_ingest.otlp.signals import SPANS, Signal
from legato_ingest.otlp.structure import ITEMS_MAX

NOW_NS = time.time_ns()
MIB = 2**20
# Six times as many items as are accepted, in more bytes than a body that is parsed at once.
MANY = 3 * MIB // 2


def batch(content: bytes, faults: list[Exception] | None = None, limits: Limits | None = None, signal: Signal = SPANS) -> Batch:
    """Return the rows of a body received at ``NOW_NS``; exceptions of Legato's own code are appended to ``faults``."""
    on_fault = faults.append if faults is not None else lambda error: pytest.fail(f"fault: {error!r}")
    return convert_body(content, tenant="", now_ns=NOW_NS, limits=limits or Limits(), on_fault=on_fault, signal=signal)


def body_of(scopes: int, spans: int, seed: int = 1) -> ExportTraceServiceRequest:
    """Return a request of several resources, each with this many spans and one that is rejected."""
    rng, body = random.Random(seed), ExportTraceServiceRequest()
    for number in range(scopes):
        part = request({"service.name": f"service-{number}"})
        for _ in range(spans):
            native_span(part, rng=rng, start_ns=NOW_NS - rng.randrange(10**12))
        native_span(part, {"legato.stream.ttfb": -1.0}, rng=rng, start_ns=NOW_NS - 5)
        body.resource_spans.extend(part.resource_spans)
    return body


def spoiled(body: ExportTraceServiceRequest, name: str) -> bytes:
    """Return the body with this name replaced by bytes that are not UTF-8."""
    content = body.SerializeToString()
    assert content.count(name.encode()) == 1
    return bytes(content.replace(name.encode(), b"\xff" * len(name)))


@pytest.mark.parametrize("spans_max", [1, 3, 1000])
def test_a_split_body_has_the_rows_of_the_request(monkeypatch: pytest.MonkeyPatch, spans_max: int) -> None:
    """Services, rejections and counts are those of the request without splitting, in its order."""
    monkeypatch.setattr(bodies, "UNSPLIT_BYTES_MAX", 0)
    monkeypatch.setattr(split, "_GROUP_ITEMS_MAX", spans_max)
    body = body_of(3, 5)
    expected, found = convert_spans(body, tenant="", now_ns=NOW_NS, limits=Limits()), batch(body.SerializeToString())
    assert found.revs.equals(expected.revs) and found.rejected.equals(expected.rejected)
    assert (found.spans, found.ignored, found.chunks) == (expected.spans, expected.ignored, expected.chunks) == (18, 0, 300)


def test_splitting_does_not_multiply_the_budget_of_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The budget holds for the request and not for each part."""
    monkeypatch.setattr(bodies, "UNSPLIT_BYTES_MAX", 0)
    monkeypatch.setattr(split, "_GROUP_ITEMS_MAX", 2)
    found = batch(body_of(1, 9).SerializeToString(), limits=Limits(chunks_per_request_max=100))
    assert found.chunks == 100
    assert sorted(found.rejected["reason"].to_pylist()) == ["attribute", *["chunk_budget"] * 4]


@pytest.mark.parametrize("at", [0, 7, 19])
def test_a_span_that_is_not_utf8_is_rejected_alone(at: int) -> None:
    """Its neighbours are stored; the rejection has its ids, size and hash, and a retry has the same hash."""
    body = request()
    for number in range(20):
        native_span(body, name=f"chat number-{number:03}")
    bad = scope_of(body).spans[at]
    found = batch(spoiled(body, bad.name))
    assert found.revs.num_rows == 19 and found.spans == 20
    (row,) = found.rejected.to_pylist()
    assert (row["reason"], row["trace_id"], row["span_id"], row["otlp_bytes"]) == ("protobuf", bad.trace_id, bad.span_id, bad.ByteSize())
    again = batch(spoiled(body, bad.name)).rejected.to_pylist()[0]
    assert again["span_sha256"] == row["span_sha256"]


def test_a_resource_that_is_not_utf8_rejects_its_own_spans() -> None:
    """The service of these spans is unknown, so they are rejected; those of the other resource are stored."""
    found = batch(spoiled(body_of(2, 4), "service-1"))
    assert found.revs["service_name"].unique().to_pylist() == ["service-0"]
    assert found.rejected["reason"].to_pylist().count("protobuf") == 5


def test_a_fault_inside_legato_rejects_the_span_that_caused_it() -> None:
    """It is rejected as `internal` and reported. With a 503 its sender would retry for ever."""
    poison = b"\x07" * 8

    def failing(body: ExportTraceServiceRequest, **more: object) -> Batch:
        if any(span.span_id == poison for r in body.resource_spans for s in r.scope_spans for span in s.spans):
            raise IndexError("poison")
        return convert_spans(body, **more)  # type: ignore[arg-type]

    body, faults = request(), list[Exception]()
    for number in range(9):
        native_span(body, span_id=poison if number == 4 else None)
    found = batch(body.SerializeToString(), faults, signal=replace(SPANS, convert=failing))
    assert found.revs.num_rows == 8 and [repr(fault) for fault in faults] == ["IndexError('poison')"]
    (row,) = found.rejected.to_pylist()
    assert (row["reason"], row["span_id"]) == ("internal", poison) and "IndexError" in row["detail"] and "poison" not in row["detail"]


@pytest.mark.parametrize("error", [MemoryError(), OSError(24, "too many open files")], ids=lambda e: type(e).__name__)
def test_a_failure_of_the_process_rejects_no_span(error: Exception) -> None:
    """A rejection would lose the span, so the error is raised and the sender retries."""

    def failing(*args: object, **more: object) -> Batch:
        raise error

    with pytest.raises(type(error)):
        batch(body_of(1, 1).SerializeToString(), signal=replace(SPANS, convert=failing))


def nested(content: bytes) -> bytes:
    """Return a request with these bytes as the spans of one scope of one resource."""
    return message(1, message(2, content))


@pytest.mark.parametrize(
    "content",
    [
        nested(b"\x12\x00" * MANY),
        nested(b"") * MANY,
        message(1, b"") * MANY,
        message(1, message(1, bytes(MIB)) + message(2, message(2, b""))),
        pytest.param(nested(b"\x12\x00" * (8 * MIB)), marks=pytest.mark.long),
    ],
    ids=["spans", "scopes", "resources", "a resource of a megabyte", "16 MiB of spans"],
)
def test_a_body_with_too_many_messages_is_too_large(content: bytes) -> None:
    """It is refused after a bounded walk, before it is parsed."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(TooLarge):
        batch(content)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000


def test_the_maximum_number_of_empty_spans_needs_little_memory() -> None:
    """They are not streams and are ignored, with less than 250 MB of memory."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found = batch(nested(b"\x12\x00" * (ITEMS_MAX - 2)))
    assert found.spans == found.ignored == ITEMS_MAX - 2
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 250_000


def test_a_very_large_span_is_rejected_alone() -> None:
    """The limit is 8 MiB: a span with 9 MiB of attributes is rejected and its neighbour is stored."""
    body = request()
    native_span(body)
    native_span(body, {f"key-{number}": "x" * MIB for number in range(9)})
    found = batch(body.SerializeToString())
    assert found.revs.num_rows == 1 and found.rejected["reason"].to_pylist() == ["size"]


@given(st.binary(max_size=200))
def test_any_bytes_become_rows_or_a_bad_request(content: bytes) -> None:
    """Any bytes as a body, as spans, and as the content of a span."""
    for body in (content, nested(content), nested(message(2, content))):
        try:
            found = batch(body)
        except BadRequest:
            continue
        except LegatoError as error:
            pytest.fail(repr(error))
        assert found.spans == found.revs.num_rows + found.rejected.num_rows + found.ignored


@given(st.data())
@examples(60)
def test_a_changed_byte_affects_its_own_span_only(data: st.DataObject) -> None:
    """For any byte of any span, every other span is stored."""
    body = request()
    for number in range(4):
        native_span(body, rng=random.Random(number), start_ns=NOW_NS - 1000)
    spans = scope_of(body).spans
    at = data.draw(st.integers(0, 3))
    raw = bytearray(spans[at].SerializeToString())
    raw[data.draw(st.integers(0, len(raw) - 1))] ^= data.draw(st.integers(1, 255))
    parts = [bytes(raw) if number == at else span.SerializeToString() for number, span in enumerate(spans)]
    found = batch(nested(b"".join(message(2, part) for part in parts)))
    others = {span.span_id for number, span in enumerate(spans) if number != at}
    assert others <= set(found.revs["span_id"].to_pylist())
    assert found.spans == 4
