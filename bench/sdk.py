"""What recording costs an application, a chunk: Legato's SDK beside the OpenTelemetry SDK carrying the same facts.

    python bench/sdk.py [--streams 60] [--chunks 300]

Rounds of all contestants alternate, so that a machine that slows down slows all; the figures are medians over rounds.
`record_us`: one `record()`. `total_us`: recorded, packed, and encoded as OTLP bytes by the exporter's own encoder. The peers carry time,
bytes, tokens and kind of each chunk as a span event, or as a span each, recorded and encoded by the same encoder. `wrap_openai_us`: what
`instrument_openai()` adds to a real `openai` client that reads a stream from memory: processor time of the whole process, worker
included. `asgi_us`: what `StreamMiddleware` adds to a send, with the same exclusions. Last line: one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import pathlib
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

ROOT = pathlib.Path(__file__).parents[1]
sys.path[:0] = [str(ROOT)]

import openai  # noqa: E402
from opentelemetry import trace  # noqa: E402
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans  # noqa: E402
from opentelemetry.sdk.trace import ReadableSpan, SpanLimits, TracerProvider  # noqa: E402
from opentelemetry.sdk.trace.export import SimpleSpanProcessor  # noqa: E402
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter  # noqa: E402

import legato  # noqa: E402
from bench.common.machine import describe  # noqa: E402
from legato.asgi import StreamMiddleware  # noqa: E402

ROUNDS = 9
LIMITS = SpanLimits(max_events=100_000, max_span_attributes=128)


class Spans:
    """A tracer provider that keeps its spans in memory, and their encoding."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider(span_limits=LIMITS)
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))

    def encode(self) -> int:
        """Bytes of an OTLP request with all spans so far, which are forgotten."""
        spans: tuple[ReadableSpan, ...] = self.exporter.get_finished_spans()
        size = len(encode_spans(spans).SerializeToString())
        self.exporter.clear()
        return size


def sizes(chunks: int) -> list[int]:
    """Content bytes a chunk, as tokens have them."""
    return [1 + (i * 7) % 9 for i in range(chunks)]


def timed(work: Callable[[], object]) -> float:
    """Processor seconds of the whole process, worker included, the garbage collector off."""
    gc.collect()
    gc.disable()
    started = time.process_time()
    work()
    seconds = time.process_time() - started
    gc.enable()
    return seconds


def record_only(streams: int, chunks: int) -> float:
    """Seconds of the calls of `record()` alone."""
    given = sizes(chunks)
    total = 0.0
    for _ in range(streams):
        recorder = legato.stream(model="m", provider="p")
        record = recorder.record
        started = time.perf_counter()
        for size in given:
            record(size)
        total += time.perf_counter() - started
        recorder.end()
    legato.flush()
    return total


def record_and_encode(spans: Spans, streams: int, chunks: int) -> None:
    """Streams by hand, to OTLP bytes."""
    given = sizes(chunks)
    for _ in range(streams):
        with legato.stream(model="m", provider="p") as recorder:
            record = recorder.record
            for size in given:
                record(size, 1)
    legato.flush()
    spans.encode()


def record_with_holds(spans: Spans, streams: int, chunks: int) -> None:
    """The same with a hold for each chunk."""
    given = sizes(chunks)
    rng = random.Random(1)
    holds = [int(rng.lognormvariate(12.2, 1.98)) for _ in range(chunks)]
    for _ in range(streams):
        with legato.stream(model="m", provider="p") as recorder:
            record, held = recorder.record, recorder.held
            for size, hold in zip(given, holds, strict=True):
                record(size, 1)
                held(hold)
    legato.flush()
    spans.encode()


def span_events(spans: Spans, tracer: trace.Tracer, streams: int, chunks: int) -> None:
    """The same facts as events of one span a stream."""
    given = sizes(chunks)
    for _ in range(streams):
        with tracer.start_as_current_span("chat m") as span:
            add = span.add_event
            for size in given:
                add("gen_ai.chunk", {"bytes": size, "tokens": 1, "kind": "text"}, time.time_ns())
    spans.encode()


def span_each(spans: Spans, tracer: trace.Tracer, streams: int, chunks: int) -> None:
    """The same facts as a span each."""
    given = sizes(chunks)
    for _ in range(streams):
        with tracer.start_as_current_span("chat m"):
            for size in given:
                tracer.start_span("gen_ai.chunk", attributes={"bytes": size, "tokens": 1, "kind": "text"}).end()
    spans.encode()


def events(chunks: int) -> list[bytes]:
    """A chat completion's server-sent events, one a read."""
    head = '{"id":"chatcmpl-bench","object":"chat.completion.chunk","created":1763700000,"model":"m","choices":[{"index":0,"delta":'
    tail = ',"logprobs":null,"finish_reason":null}]}'
    words = ["data: " + head + '{"role":"assistant","content":""}' + tail + "\n\n"]
    words += ["data: " + head + '{"content":" w' + "o" * (i % 8) + 'rd"}' + tail + "\n\n" for i in range(chunks - 3)]
    end = head + '{},"logprobs":null,"finish_reason":"stop"}]}'
    return [word.encode() for word in (*words, f"data: {end}\n\n", "data: [DONE]\n\n")]


def openai_client(body: list[bytes]) -> openai.OpenAI:
    """A real client over a transport that answers from memory, a read an event."""
    http: Any = __import__(openai.DefaultHttpxClient.__mro__[1].__module__.split(".")[0])

    class Body(http.SyncByteStream):  # type: ignore[misc]
        def __iter__(self) -> Iterator[bytes]:
            return iter(body)

    def answer(request: Any) -> Any:
        return http.Response(200, headers={"content-type": "text/event-stream"}, stream=Body(), request=request)

    return openai.OpenAI(api_key="none", base_url="http://bench/v1", http_client=http.Client(transport=http.MockTransport(answer)))


def read_streams(client: openai.OpenAI, streams: int) -> float:
    """Processor seconds of the whole process to read so many streams to their end."""
    started = time.process_time()
    for _ in range(streams):
        for _ in client.chat.completions.create(model="m", messages=[], stream=True):
            pass
    legato.flush()
    return time.process_time() - started


def serve_streams(app: Callable[..., Any], streams: int) -> float:
    """Processor seconds of the whole process for an ASGI application to send so many streams."""
    scope: dict[str, Any] = {
        "type": "http",
        "method": "POST",
        "path": "/v1/chat/completions",
        "headers": [],
        "http_version": "1.1",
        "client": None,
    }

    async def receive() -> dict[str, Any]:
        await asyncio.sleep(3600)
        return {}

    async def send(message: Any) -> None:
        pass

    async def run() -> None:
        for _ in range(streams):
            await app(dict(scope), receive, send)

    started = time.process_time()
    asyncio.run(run())
    legato.flush()
    return time.process_time() - started


def asgi_app(body: list[bytes]) -> Callable[..., Any]:
    """Sends the events, one a message."""
    head = {"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]}

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send(head)
        for event in body:
            await send({"type": "http.response.body", "body": event, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    return app


def main() -> None:
    """Run the rounds and print the medians."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--streams", type=int, default=60)
    options.add_argument("--chunks", type=int, default=300)
    given = options.parse_args()
    streams, chunks = given.streams, given.chunks
    ours, peers = Spans(), Spans()
    trace.set_tracer_provider(ours.provider)
    tracer = peers.provider.get_tracer("peer")
    body = events(chunks)
    client, app = openai_client(body), asgi_app(body)
    measured: dict[str, list[float]] = {}
    few = max(1, streams // 10)

    def note(name: str, seconds: float, runs: int) -> None:
        measured.setdefault(name, []).append(seconds / runs / chunks * 1e6)

    for _ in range(ROUNDS):
        note("record", record_only(streams, chunks), streams)
        ours.exporter.clear()
        note("total", timed(lambda: record_and_encode(ours, streams, chunks)), streams)
        note("total+hold", timed(lambda: record_with_holds(ours, streams, chunks)), streams)
        note("events", timed(lambda: span_events(peers, tracer, few, chunks)), few)
        note("spans", timed(lambda: span_each(peers, tracer, few, chunks)), few)
        note("openai bare", read_streams(client, few), few)
        legato.instrument_openai()
        note("openai", read_streams(client, few), few)
        legato.uninstrument_openai()
        note("asgi bare", serve_streams(app, streams), streams)
        note("asgi", serve_streams(StreamMiddleware(app), streams), streams)
        ours.exporter.clear()
    report(measured, streams, chunks)


def report(measured: dict[str, list[float]], streams: int, chunks: int) -> None:
    """Print the table and the JSON line."""
    at = {name: statistics.median(values) for name, values in measured.items()}
    print(describe("opentelemetry-sdk", "openai"))
    print(f"µs a chunk, medians of {ROUNDS} rounds of {streams} streams of {chunks} chunks (a tenth of the streams for peers and openai)")
    for name, values in measured.items():
        print(f"  {name:12} {at[name]:8.3f}   ({min(values):.3f} to {max(values):.3f})")
    wrap = [after - before for before, after in zip(measured["openai bare"], measured["openai"], strict=True)]
    asgi = [after - before for before, after in zip(measured["asgi bare"], measured["asgi"], strict=True)]
    figures = {
        "record_us": round(at["record"], 3),
        "total_us": round(at["total"], 3),
        "total_with_hold_us": round(at["total+hold"], 3),
        "ratio_span_events": round(at["events"] / at["total"], 1),
        "ratio_span_per_chunk": round(at["spans"] / at["total"], 1),
        "wrap_openai_us": round(statistics.median(wrap), 2),
        "asgi_us": round(statistics.median(asgi), 2),
        "n_rounds": ROUNDS,
        "n_chunks": streams * chunks,
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
