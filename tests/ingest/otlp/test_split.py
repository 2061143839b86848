"""Cutting a body: the same rows as parsing it whole, a fault costs one span, and a bomb costs no memory."""

from __future__ import annotations

import random
import resource
import time
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from helpers.builders.points import gauge, histogram, metrics_request, total
from helpers.builders.spans import native_span, request, scope_of
from helpers.platform.examples import examples
from legato_ingest.errors import BadRequest, LegatoError, TooLarge
from legato_ingest.otlp import split
from legato_ingest.otlp.batch import Batch, Limits
from legato_ingest.otlp.convert import convert_points, convert_spans
from legato_ingest.otlp.protobuf import message
from legato_ingest.otlp.signals import POINTS, SPANS, Signal
from legato_ingest.otlp.split import ITEMS_MAX, convert_body

NOW_NS = time.time_ns()
MIB = 2**20
# Six times as many items as are accepted, in more bytes than a body that is parsed at once.
MANY = 3 * MIB // 2


def batch(content: bytes, faults: list[Exception] | None = None, limits: Limits | None = None, signal: Signal = SPANS) -> Batch:
    """The rows of a body at a fixed moment."""
    heard = faults.append if faults is not None else lambda error: pytest.fail(f"fault: {error!r}")
    return convert_body(content, tenant="", now_ns=NOW_NS, limits=limits or Limits(), on_fault=heard, signal=signal)


def body_of(scopes: int, spans: int, seed: int = 1) -> ExportTraceServiceRequest:
    """A request of several resources, each with this many spans, one of them refused."""
    rng, body = random.Random(seed), ExportTraceServiceRequest()
    for number in range(scopes):
        part = request({"service.name": f"service-{number}"})
        for _ in range(spans):
            native_span(part, rng=rng, start_ns=NOW_NS - rng.randrange(10**12))
        native_span(part, {"legato.stream.ttfb": -1.0}, rng=rng, start_ns=NOW_NS - 5)
        body.resource_spans.extend(part.resource_spans)
    return body


def spoiled(body: ExportTraceServiceRequest, name: str) -> bytes:
    """The body with the named span's name no longer UTF-8."""
    content = body.SerializeToString()
    assert content.count(name.encode()) == 1
    return bytes(content.replace(name.encode(), b"\xff" * len(name)))


@pytest.mark.parametrize("spans_max", [1, 3, 1000])
def test_a_body_in_pieces_has_the_rows_of_the_whole(monkeypatch: pytest.MonkeyPatch, spans_max: int) -> None:
    """Services, refusals and counts are those of the uncut request, in its order."""
    monkeypatch.setattr(split, "_UNSPLIT_BYTES_MAX", 0)
    monkeypatch.setattr(split, "_GROUP_ITEMS_MAX", spans_max)
    body = body_of(3, 5)
    whole, cut = convert_spans(body, tenant="", now_ns=NOW_NS, limits=Limits()), batch(body.SerializeToString())
    assert cut.revs.equals(whole.revs) and cut.rejected.equals(whole.rejected)
    assert (cut.spans, cut.ignored, cut.chunks) == (whole.spans, whole.ignored, whole.chunks) == (18, 0, 300)


def test_the_budget_of_chunks_is_the_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cutting a request does not multiply what it may declare."""
    monkeypatch.setattr(split, "_UNSPLIT_BYTES_MAX", 0)
    monkeypatch.setattr(split, "_GROUP_ITEMS_MAX", 2)
    cut = batch(body_of(1, 9).SerializeToString(), limits=Limits(chunks_per_request_max=100))
    assert cut.chunks == 100
    assert sorted(cut.rejected["reason"].to_pylist()) == ["attribute", *["chunk_budget"] * 4]


@pytest.mark.parametrize("at", [0, 7, 19])
def test_a_text_that_is_not_utf8_costs_its_own_span(at: int) -> None:
    """Its neighbours are stored; what is known of it is its ids, its size and its hash."""
    body = request()
    for number in range(20):
        native_span(body, name=f"chat number-{number:03}")
    bad = scope_of(body).spans[at]
    cut = batch(spoiled(body, bad.name))
    assert cut.revs.num_rows == 19 and cut.spans == 20
    (row,) = cut.rejected.to_pylist()
    assert (row["reason"], row["trace_id"], row["span_id"], row["otlp_bytes"]) == ("protobuf", bad.trace_id, bad.span_id, bad.ByteSize())
    again = batch(spoiled(body, bad.name)).rejected.to_pylist()[0]
    assert again["span_sha256"] == row["span_sha256"]


def test_a_resource_that_is_not_utf8_costs_its_own_spans() -> None:
    """Whose they are is not known: they are rejected, and the neighbouring service is stored."""
    cut = batch(spoiled(body_of(2, 4), "service-1"))
    assert cut.revs["service_name"].unique().to_pylist() == ["service-0"]
    assert cut.rejected["reason"].to_pylist().count("protobuf") == 5


def test_a_fault_inside_legato_costs_the_span_that_met_it() -> None:
    """It is rejected as internal and heard of: answered 503, its sender would bring it again for ever."""
    poison = b"\x07" * 8

    def failing(body: ExportTraceServiceRequest, **more: object) -> Batch:
        if any(span.span_id == poison for r in body.resource_spans for s in r.scope_spans for span in s.spans):
            raise IndexError("poison")
        return convert_spans(body, **more)  # type: ignore[arg-type]

    body, faults = request(), list[Exception]()
    for number in range(9):
        native_span(body, span_id=poison if number == 4 else None)
    cut = batch(body.SerializeToString(), faults, signal=replace(SPANS, convert=failing))
    assert cut.revs.num_rows == 8 and [repr(fault) for fault in faults] == ["IndexError('poison')"]
    (row,) = cut.rejected.to_pylist()
    assert (row["reason"], row["span_id"]) == ("internal", poison) and "IndexError" in row["detail"] and "poison" not in row["detail"]


@pytest.mark.parametrize("error", [MemoryError(), OSError(24, "too many open files")], ids=lambda e: type(e).__name__)
def test_trouble_of_the_process_is_no_spans_fault(error: Exception) -> None:
    """Rejecting would be losing: the sender shall try again."""

    def failing(*args: object, **more: object) -> Batch:
        raise error

    with pytest.raises(type(error)):
        batch(body_of(1, 1).SerializeToString(), signal=replace(SPANS, convert=failing))


def nested(content: bytes) -> bytes:
    """Bytes as the spans of one scope of one resource."""
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
def test_a_body_of_too_many_things_is_too_large(content: bytes) -> None:
    """Refused after a bounded walk, before anything is parsed."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(TooLarge):
        batch(content)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000


def test_as_many_empty_spans_as_are_taken_cost_little() -> None:
    """They are no streams: ignored, at less than a quarter of a gigabyte."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    cut = batch(nested(b"\x12\x00" * (ITEMS_MAX - 2)))
    assert cut.spans == cut.ignored == ITEMS_MAX - 2
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 250_000


def test_a_span_without_end_is_rejected_alone() -> None:
    """Nine megabytes of attributes in one span: its neighbour is stored."""
    body = request()
    native_span(body)
    native_span(body, {f"key-{number}": "x" * MIB for number in range(9)})
    cut = batch(body.SerializeToString())
    assert cut.revs.num_rows == 1 and cut.rejected["reason"].to_pylist() == ["size"]


@given(st.binary(max_size=200))
def test_any_bytes_are_rows_or_refused(content: bytes) -> None:
    """Garbage as a body, and as the content of a span."""
    for body in (content, nested(content), nested(message(2, content))):
        try:
            cut = batch(body)
        except BadRequest:
            continue
        except LegatoError as error:
            pytest.fail(repr(error))
        assert cut.spans == cut.revs.num_rows + cut.rejected.num_rows + cut.ignored


@given(st.data())
@examples(60)
def test_a_flipped_byte_costs_at_most_what_it_touched(data: st.DataObject) -> None:
    """Any byte of any span: every other span is stored, whatever became of this one."""
    body = request()
    for number in range(4):
        native_span(body, rng=random.Random(number), start_ns=NOW_NS - 1000)
    spans = scope_of(body).spans
    at = data.draw(st.integers(0, 3))
    raw = bytearray(spans[at].SerializeToString())
    raw[data.draw(st.integers(0, len(raw) - 1))] ^= data.draw(st.integers(1, 255))
    parts = [bytes(raw) if number == at else span.SerializeToString() for number, span in enumerate(spans)]
    cut = batch(nested(b"".join(message(2, part) for part in parts)))
    others = {span.span_id for number, span in enumerate(spans) if number != at}
    assert others <= set(cut.revs["span_id"].to_pylist())
    assert cut.spans == 4


def metrics_of(engines: int, metrics: int) -> ExportMetricsServiceRequest:
    """A request of several resources, each with metrics of every kind that is taken, and one point that is refused."""
    body = ExportMetricsServiceRequest()
    for number in range(engines):
        part = metrics_request({"legato.engine.id": f"engine-{number}"})
        for each in range(metrics):
            gauge(part, f"gauge-{each:03}", each, NOW_NS - each, attributes={"n": f"point-{number}-{each:03}"})
            total(part, f"sum-{each:03}", 0.5, NOW_NS - each).CopyFrom(total(part, f"sum-{each:03}", 1.5, NOW_NS - each))
            histogram(part, f"histogram-{each:03}", [1, 2], [each, 2, 3], NOW_NS - each)
        gauge(part, "late", 1, 0)
        body.resource_metrics.extend(part.resource_metrics)
    return body


@pytest.mark.parametrize("items_max", [1, 3, 1000])
def test_a_body_of_metrics_in_pieces_has_the_rows_of_the_whole(monkeypatch: pytest.MonkeyPatch, items_max: int) -> None:
    """Engines, kinds, temporalities, refusals and counts are those of the uncut request, in its order."""
    monkeypatch.setattr(split, "_UNSPLIT_BYTES_MAX", 0)
    monkeypatch.setattr(split, "_GROUP_ITEMS_MAX", items_max)
    body = metrics_of(3, 4)
    whole = convert_points(body, tenant="", now_ns=NOW_NS, limits=Limits())
    cut = batch(body.SerializeToString(), signal=POINTS)
    assert cut.samples.combine_chunks().equals(whole.samples.combine_chunks()) and cut.rejected.equals(whole.rejected)
    assert (cut.points, cut.ignored, cut.spans) == (whole.points, whole.ignored, 0) == (51, 0, 0)


def test_the_budget_of_attributes_is_the_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cutting a request does not multiply what its rows may repeat."""
    body = metrics_request({"label": "x" * 1000})
    for number in range(100):
        gauge(body, "a", number, NOW_NS - number)
    monkeypatch.setattr(split, "_UNSPLIT_BYTES_MAX", 0)
    monkeypatch.setattr(split, "_GROUP_ITEMS_MAX", 7)
    cut = batch(body.SerializeToString(), limits=Limits(attribute_bytes_per_request_max=20_500), signal=POINTS)
    assert cut.samples.num_rows == 20 and cut.rejected["reason"].to_pylist() == ["budget"] * 80


@pytest.mark.parametrize("at", [0, 7, 19])
def test_a_point_that_is_not_utf8_costs_nobody_else(at: int) -> None:
    """Neither the other points of its metric nor other metrics; it is told by its metric's name."""
    body = metrics_of(1, 20)
    content = body.SerializeToString().replace(f"point-0-{at:03}".encode(), b"\xff" * 11)
    cut = batch(content, signal=POINTS)
    assert cut.samples.num_rows == 79 and cut.points == 81
    assert sorted(cut.rejected["reason"].to_pylist()) == ["protobuf", "time"]
    (row,) = [row for row in cut.rejected.to_pylist() if row["reason"] == "protobuf"]
    assert row["detail"].startswith(f"metric 'gauge-{at:03}': not valid protobuf")
    again = batch(content, signal=POINTS).rejected.to_pylist()
    assert row["span_sha256"] in [each["span_sha256"] for each in again]


def test_a_fault_inside_legato_costs_the_point_that_met_it() -> None:
    """As with spans."""

    def failing(body: ExportMetricsServiceRequest, **more: object) -> Batch:
        out = convert_points(body, **more)  # type: ignore[arg-type]
        if 3 in out.samples["value"].to_pylist():
            raise IndexError("poison")
        return out

    body, faults = metrics_request(), list[Exception]()
    for number in range(9):
        gauge(body, "a", number, NOW_NS)
    cut = batch(body.SerializeToString(), faults, signal=replace(POINTS, convert=failing))
    assert cut.samples["value"].to_pylist() == [0, 1, 2, 4, 5, 6, 7, 8] and [repr(fault) for fault in faults] == ["IndexError('poison')"]
    assert cut.rejected["reason"].to_pylist() == ["internal"] and cut.points == 9


def metric_of(content: bytes) -> bytes:
    """Bytes as a metric's, in a request of one scope of one resource."""
    return nested(message(2, content))


@pytest.mark.parametrize("reason", ["protobuf", "size"])
def test_a_metric_that_cannot_be_cut_is_refused_whole(monkeypatch: pytest.MonkeyPatch, reason: str) -> None:
    """Bytes missing at its end, or a name as long as a book in a large body: rejected as one, and the metrics beside it are stored."""
    monkeypatch.setattr(split, "_UNSPLIT_BYTES_MAX", 0)
    body = metrics_request({})
    for name in ("first", "n" * 300_000, "last"):
        gauge(body, name, 1, NOW_NS)
    first, bad, last = (metric.SerializeToString() for metric in body.resource_metrics[0].scope_metrics[0].metrics)
    cut = batch(nested(b"".join(message(2, each) for each in (first, bad if reason == "size" else first[:-2], last))), signal=POINTS)
    assert cut.samples["metric"].to_pylist() == ["first", "last"]
    assert cut.rejected["reason"].to_pylist() == [reason] and cut.points == 3
    assert len(cut.rejected["detail"][0].as_py()) < 400


@pytest.mark.parametrize(
    "content",
    [
        metric_of(message(5, b"\x0a\x00" * MANY)),
        nested(b"\x12\x00" * MANY),
        metric_of(b"\x2a\x00" * MANY),
        pytest.param(nested(b"\x12\x00" * (8 * MIB)), marks=pytest.mark.long),
    ],
    ids=["points", "metrics", "gauges", "16 MiB of metrics"],
)
def test_a_body_of_too_many_points_is_too_large(content: bytes) -> None:
    """Refused after a bounded walk, before anything is parsed."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(TooLarge):
        batch(content, signal=POINTS)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 250_000


@given(st.binary(max_size=200))
def test_any_bytes_of_metrics_are_rows_or_refused(content: bytes) -> None:
    """Garbage as a body, as a metric, as its data and as a point."""
    point = message(1, content)
    for body in (content, nested(content), metric_of(content), *(metric_of(message(kind, point)) for kind in (5, 7, 9, 10, 11))):
        try:
            cut = batch(body, signal=POINTS)
        except BadRequest:
            continue
        assert cut.points == cut.samples.num_rows + cut.rejected.num_rows + cut.ignored


@given(st.data())
def test_a_flipped_byte_in_a_point_costs_that_point(data: st.DataObject) -> None:
    """Any byte of any point of one metric: every other point is stored, whatever became of this one."""
    body = metrics_request()
    kind = data.draw(st.sampled_from(["gauge", "sum", "histogram"]))
    for number in range(4):
        add = {"gauge": gauge, "sum": total}.get(kind)
        add(body, "a", number, NOW_NS, attributes={"n": number}) if add else histogram(body, "a", [1], [number, 2], NOW_NS - number)
    metrics = body.resource_metrics[0].scope_metrics[0].metrics
    points = [getattr(metric, kind).data_points[0].SerializeToString() for metric in metrics]
    at = data.draw(st.integers(0, 3))
    raw = bytearray(points[at])
    raw[data.draw(st.integers(0, len(raw) - 1))] ^= data.draw(st.integers(1, 255))
    parts = b"".join(message(1, bytes(raw) if number == at else point) for number, point in enumerate(points))
    field = {"gauge": 5, "sum": 7, "histogram": 9}[kind]
    cut = batch(metric_of(message(1, b"a") + message(field, parts)), signal=POINTS)
    assert cut.points == 4 and cut.samples.num_rows + cut.ignored >= 3
    column = "value" if kind != "histogram" else "count"
    kept = {row[column] for row in cut.samples.to_pylist()}
    assert {number + 2 * (kind == "histogram") for number in range(4) if number != at} <= kept


@given(st.data())
def test_a_flipped_byte_in_a_metric_costs_at_most_that_metric(data: st.DataObject) -> None:
    """Any byte of any metric: the points of all others are stored."""
    body = metrics_request()
    gauge(body, "a", 1, NOW_NS)
    total(body, "b", 1, NOW_NS)
    histogram(body, "c", [1], [1, 2], NOW_NS)
    metrics = [metric.SerializeToString() for metric in body.resource_metrics[0].scope_metrics[0].metrics]
    at = data.draw(st.integers(0, 2))
    raw = bytearray(metrics[at])
    raw[data.draw(st.integers(0, len(raw) - 1))] ^= data.draw(st.integers(1, 255))
    parts = [bytes(raw) if number == at else metric for number, metric in enumerate(metrics)]
    cut = batch(nested(b"".join(message(2, part) for part in parts)), signal=POINTS)
    assert {name for number, name in enumerate("abc") if number != at} <= set(cut.samples["metric"].to_pylist())
