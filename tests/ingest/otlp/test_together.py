"""Several bodies at once: each has the batch that it has alone, and a body that needs care leaves all to the splitter."""

from __future__ import annotations

import itertools
import random
import time
from dataclasses import fields

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from helpers.builders.converted import convert_body
from helpers.builders.spans import native_span, request
from helpers.builders.worst_bodies import CASES
from helpers.platform.examples import examples
from legato._timeline import pack
from legato_gpu_agent.agent.otlp_spans import Engine, steps_request
from legato_gpu_agent.plugin.model import FinishedRequest, Step
from legato_ingest.otlp import convert
from legato_ingest.otlp.batch import Limits
from legato_ingest.otlp.signals import SPANS
from legato_ingest.otlp.together import convert_bodies

NOW_NS = time.time_ns()


def stream_body(rng: random.Random) -> ExportTraceServiceRequest:
    """A process with some streams, some of them with socket samples, and at times a bad timeline or a span of another kind."""
    body = request({"service.name": f"service-{rng.randrange(3)}"})
    for _ in range(rng.randrange(4)):
        count = rng.randrange(1, 30)
        times = sorted(rng.randrange(10**6) for _ in range(count))
        timeline = pack(times, None, None, [1] * count)
        bad = {"legato.stream.timeline": timeline[:-1]} if rng.random() < 0.2 else {"legato.stream.timeline": timeline}
        native_span(body, bad, rng=rng, start_ns=NOW_NS - rng.randrange(10**12))
    if rng.random() < 0.3:
        native_span(body, {"legato.stream.ttfb": -1.0}, rng=rng, start_ns=NOW_NS - 5)
    return body


def agent_body(rng: random.Random) -> ExportTraceServiceRequest:
    """An agent with steps and finished requests."""
    made = [Step(number, NOW_NS + number) for number in range(rng.randrange(1, 20))]
    finished = [FinishedRequest(number, f"r{number}") for number in range(rng.randrange(3))]
    return steps_request(Engine(f"e{rng.randrange(3)}", 5), made, finished)


def bodies_of(seed: int, count: int) -> list[bytes]:
    """Bodies of several processes."""
    rng = random.Random(seed)
    return [(agent_body if rng.random() < 0.4 else stream_body)(rng).SerializeToString() for _ in range(count)]


@given(st.integers(0, 10**6), st.integers(1, 8))
@examples(60)
def test_each_body_has_the_rows_that_it_has_alone(seed: int, count: int) -> None:
    """Rows, rejections and counts, in the order of the body."""
    contents = bodies_of(seed, count)
    together = convert_bodies(contents, tenant="t", now_ns=NOW_NS, limits=Limits())
    assert len(together) == count
    for content, batch in zip(contents, together, strict=True):
        # A single body is left to the splitter.
        if batch is None:
            assert count == 1
            continue
        alone = convert_body(content, tenant="t", now_ns=NOW_NS, limits=Limits(), on_fault=print)
        for each in fields(alone):
            expected, found = getattr(alone, each.name), getattr(batch, each.name)
            if isinstance(expected, pa.Table):
                assert found.to_pylist() == expected.to_pylist(), each.name
            elif each.name != "size_bytes":
                assert found == expected, each.name
        assert batch.weight == alone.weight and batch.nbytes > 0


def test_bodies_that_need_care_are_left_to_the_splitter(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that cannot be parsed, and bodies that declare more chunks together than are converted at once."""
    good = bodies_of(1, 3)
    assert convert_bodies([*good, b"\xff\xff"], tenant="", now_ns=NOW_NS, limits=Limits()) == [None] * 4
    streams = [stream_body(random.Random(seed)).SerializeToString() for seed in range(40)]
    monkeypatch.setattr(convert, "_TOGETHER_CHUNKS_MAX", 20)
    assert convert_bodies(streams, tenant="", now_ns=NOW_NS, limits=Limits()) == [None] * 40


def test_many_spans_in_few_bytes_are_not_parsed_together() -> None:
    """Bodies of 60,000 empty spans: each of them is left; small ones after them are converted together, unless the time is over."""
    empty = b"\x12\x00" * 60_000
    scope = b"\x12" + _varint(len(empty)) + empty
    bomb = b"\x0a" + _varint(len(scope)) + scope
    assert len(ExportTraceServiceRequest.FromString(bomb).resource_spans[0].scope_spans[0].spans) == 60_000
    began_s = time.monotonic()
    batches = convert_bodies([*[bomb] * 100, *bodies_of(1, 3)], tenant="", now_ns=NOW_NS, limits=Limits())
    assert batches[:99] == [None] * 99 and time.monotonic() - began_s < 5


def test_a_body_is_measured_by_its_rows_whatever_is_converted_beside_it() -> None:
    """A neighbour with small rows, for example a stream that declares 65,536 chunks, takes over no memory of a body."""
    makers = [make for signal, make in CASES.values() if signal is SPANS]
    for make, other in itertools.product(makers, makers):
        batch, _ = convert_bodies([make(NOW_NS, 3_000), other(NOW_NS, 300)], tenant="t", now_ns=NOW_NS, limits=Limits())
        if batch is not None:
            assert batch.size_bytes >= 0.8 * sum(table.nbytes for table in batch.tables)


def _varint(value: int) -> bytes:
    return bytes([value & 0x7F | 0x80, value >> 7 & 0x7F | 0x80, value >> 14])
