"""Bodies that are converted to several batches: the rows of one batch, bad bodies before the first, the memory of one batch at a time."""

from __future__ import annotations

import contextlib
import json
import time
import tracemalloc
from collections import Counter
from collections.abc import Iterator
from dataclasses import fields

import pyarrow as pa
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from helpers.builders.converted import convert_body, divide_bodies
from helpers.builders.json_otlp import json_of
from helpers.builders.spans import native_span, request
from helpers.builders.worst_bodies import CASES, resources_in_json
from helpers.platform.allocations import peak_bytes
from legato_ingest.errors import BadRequest, TooLarge
from legato_ingest.otlp import bodies
from legato_ingest.otlp.batch import Batch, Limits
from legato_ingest.otlp.bodies import convert
from legato_ingest.otlp.protobuf import message
from legato_ingest.otlp.signals import SPANS, Signal
from legato_ingest.otlp.split import Converter

MIB = 2**20
NOW_NS = time.time_ns()
# The largest body that is accepted, and the memory of its conversion.
LARGEST, MOST = 64 * MIB, 128 * MIB


def batches_of(content: bytes, signal: Signal = SPANS, *, is_json: bool = False) -> Iterator[Batch]:
    """Return the batches of a body that arrives now."""

    def fault(error: Exception) -> None:
        pytest.fail(repr(error))

    return convert(content, tenant="shop", now_ns=NOW_NS, limits=Limits(), on_fault=fault, signal=signal, is_json=is_json)


def many(count: int, bad: int = 7) -> ExportTraceServiceRequest:
    """Return a request of streams, each seventh with a timeline that cannot be decoded."""
    body = request()
    for number in range(count):
        native_span(body, {"legato.stream.timeline": b"\xff"} if number % bad == 0 else {}, start_ns=NOW_NS - 5_000)
    return body


@pytest.mark.parametrize("is_json", [False, True], ids=["protobuf", "JSON"])
def test_the_batches_are_the_rows_of_the_body(monkeypatch: pytest.MonkeyPatch, is_json: bool) -> None:
    """Together they have the rows, the rejections and the counts of the only batch of the body."""
    sent = many(40)
    content = json_of(sent) if is_json else sent.SerializeToString()
    one = convert_body(content, tenant="shop", now_ns=NOW_NS, limits=Limits(), on_fault=print, is_json=is_json)
    divide_bodies(monkeypatch)
    parts = list(batches_of(content, is_json=is_json))
    assert len(parts) >= 8 and all(part.spans <= 10 for part in parts)
    joined = Batch.joined(parts)
    assert (joined.spans, joined.revs.num_rows, joined.rejected.num_rows) == (40, 34, 6)
    for each in fields(Batch):
        table = getattr(one, each.name)
        if isinstance(table, pa.Table):
            found = getattr(joined, each.name)
            assert Counter(map(str, found.to_pylist())) == Counter(map(str, table.to_pylist())), each.name
        elif each.name not in ("size_bytes", "chunks"):
            assert getattr(joined, each.name) == table


def test_a_bad_body_is_refused_before_its_first_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever the fault is: nothing of the body is stored, and the sender learns that it is bad."""
    divide_bodies(monkeypatch)
    good = many(20).SerializeToString()
    large = message(1, message(1, message(1, b"\x0a\x02ab") + b"\x12" + b"\xff\xff\x1f" + bytes(2**19 - 1)))
    for content, error in ((good + b"\x0a\xff", BadRequest), (good + message(1, b"\x12\x07"), BadRequest), (good + large, TooLarge)):
        with pytest.raises(error):
            next(batches_of(content))
    text = json_of(many(20))
    resource = text[:-2] + b',{"resource":{"attributes":7},"scopeSpans":[{"spans":[{}]}]}]}'
    for bad in (text[:-1], text + b"x", resource):
        with pytest.raises(BadRequest):
            next(batches_of(bad, is_json=True))
    assert next(batches_of(text, is_json=True)).spans and next(batches_of(good)).spans


def test_a_body_without_items_has_one_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """As any other body has at least one: its request is answered when that is safe."""
    divide_bodies(monkeypatch)
    assert [batch.spans for batch in batches_of(b"")] == [0]
    assert [batch.spans for batch in batches_of(b'{"resourceSpans":[]}', is_json=True)] == [0]


def peak_of(content: bytes, signal: Signal, *, is_json: bool = False) -> int:
    """Return the largest memory of a conversion of which each batch is forgotten before the next one. A body may be refused as a whole."""

    def convert_all() -> None:
        with contextlib.suppress(TooLarge):
            for batch in batches_of(content, signal, is_json=is_json):
                del batch

    return peak_bytes(convert_all)


# Kinds of bodies with many items of usual size, and kinds with the most rows for their bytes: the others are in the long tests.
_USUAL = ("streams with different gaps", "histograms")


@pytest.mark.parametrize("case", [pytest.param(name, marks=[pytest.mark.long] * (name not in _USUAL)) for name in CASES])
def test_the_largest_bodies_take_no_more_memory_than_others(case: str) -> None:
    """Less than 128 MiB for 64 MiB, because their rows are never in memory together."""
    signal, make = CASES[case]
    content = make(NOW_NS, LARGEST)
    assert peak_of(content, signal) <= MOST


def test_a_batch_of_many_small_parts_has_few_pieces() -> None:
    """An event loop reads the size of a batch: with a piece for each bad span, a body of 600 bytes after gzip stopped it for 8 s."""
    good = request()
    native_span(good, start_ns=NOW_NS - 5_000)
    bad = message(1, message(2, message(2, b"\x2a\x02\xff\xff") * 4_000))
    for content, is_json in ((good.SerializeToString() + bad, False), (resources_in_json(NOW_NS, 3_999), True)):
        (batch,) = batches_of(content, is_json=is_json)
        assert (batch.spans, batch.revs.num_rows) == (4_001, 1) and 0 < batch.size_bytes <= batch.nbytes
        assert max(column.num_chunks for table in batch.tables for column in table.columns) <= 8


def test_items_are_converted_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """A conversion costs as much as hundreds of items: good ones between bad ones, and those of single resources in JSON, share one."""
    conversions, convert_one = list[int](), Converter.convert

    def counted(self: Converter, content: bytes, *, is_one: bool = False) -> Batch:
        batch = convert_one(self, content, is_one=is_one)
        conversions.append(batch.spans)
        return batch

    monkeypatch.setattr(Converter, "convert", counted)
    good, bad = many(600), message(1, message(2, message(2, b"\x2a\x02\xff\xff")))
    single = [ExportTraceServiceRequest() for _ in range(600)]
    for each, span in zip(single, good.resource_spans[0].scope_spans[0].spans, strict=True):
        each.resource_spans.add().scope_spans.add().spans.append(span)
    (batch,) = batches_of(b"".join(each.SerializeToString() + bad for each in single))
    assert (batch.spans, batch.revs.num_rows) == (1_200, 514) and conversions == [600]
    text = json.dumps({"resourceSpans": [json.loads(json_of(each))["resourceSpans"][0] for each in single]}).encode()
    monkeypatch.setattr(bodies, "_JSON_WHOLE_BYTES_MAX", 0)
    conversions.clear()
    (batch,) = batches_of(text, is_json=True)
    assert (batch.spans, batch.revs.num_rows) == (600, 514) and sum(conversions) == 600 and len(conversions) < 5


def test_a_large_text_is_converted_in_parts() -> None:
    """JSON, too: 24 MiB of streams and rejected items."""
    (item,) = json.loads(json_of(many(1, bad=2)))["resourceSpans"][0]["scopeSpans"][0]["spans"]
    item["traceId"], bad = "ab" * 16, {"traceId": "zz", "name": "x" * 400}
    items = b",".join([json.dumps(item).encode(), json.dumps(bad).encode()] * 9_000)
    content = b'{"resourceSpans":[{"scopeSpans":[{"spans":[%s]}]}]}' % items
    assert len(content) > 12 * MIB
    assert peak_of(content, SPANS, is_json=True) <= MOST


@pytest.mark.parametrize("levels", [(1, 2, 2), (1, 2, 2, 9)], ids=["a span", "an attribute"])
def test_an_item_that_is_too_large_is_not_copied(levels: tuple[int, ...]) -> None:
    """A span of 60 MiB is rejected in its place, with its size, and its neighbours are stored."""
    content = bytes(60 * MIB)
    for number in reversed(levels):
        content = message(number, content)
    good = many(20, bad=50).SerializeToString()
    content = good + content + good
    tracemalloc.start()
    try:
        batch = Batch.joined(batches_of(content))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    (row,) = [row for row in batch.rejected.to_pylist() if row["reason"] == "size"]
    assert row["otlp_bytes"] >= 60 * MIB and batch.revs.num_rows == 38
    assert peak < 8 * MIB
