"""Bytes per chunk on the wire, before gzip, of the requests that the SDK's batch processor makes.

    python bench/wire.py [--recordings demo/recordings]

Each client of each recording is replayed through the SDK. Its reads come at their recorded times and hold server-sent events of the
recorded sizes; connection, usage and outcome are those of the recording. The hold of each item is drawn from a log-normal distribution
(median 200 µs, p99 20 ms). OpenTelemetry's batch processor divides the spans into requests, and its encoder writes them. `bytes_per_chunk`
counts one span per stream; `bytes_per_chunk_with_snapshots` adds the snapshots of streams longer than 10 s, `…_and_silences` also the
reports about streams without content for 2 s, 8 s, 30 s, …. `timeline_bytes_per_chunk`
counts the timelines only, without holds. Last line: one JSON object.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import random
import sys
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

ROOT = pathlib.Path(__file__).parents[1]
sys.path[:0] = [str(ROOT)]

from opentelemetry import trace  # noqa: E402
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans  # noqa: E402
from opentelemetry.sdk.resources import Resource  # noqa: E402
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider  # noqa: E402
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult  # noqa: E402

import legato._recorder  # noqa: E402
import legato._stream  # noqa: E402
from bench.common.machine import describe  # noqa: E402
from bench.common.recordings import DONE, ROLE, USAGE, RecordedStream, streams_of  # noqa: E402
from legato._clock import anchor_ns  # noqa: E402
from legato._recorder import Origin, StreamRecorder  # noqa: E402
from legato._silence import Silence  # noqa: E402
from legato._timeline import pack  # noqa: E402
from legato._worker import Worker  # noqa: E402

SNAPSHOT_INTERVAL_MS = 10_000
TICK_NS = 250_000_000
# Bytes around a token in a recorded event; the other bytes of an event count as content.
ENVELOPE = 205


class Sink(SpanExporter):
    """Counts the bytes of every request."""

    def __init__(self) -> None:
        self.bytes = self.spans = 0

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Encode a batch as the OTLP exporter does."""
        self.bytes += len(encode_spans(spans).SerializeToString())
        self.spans += len(spans)
        return SpanExportResult.SUCCESS


class Mute(Silence):
    """Reports nothing."""

    def tick(self, recorder: StreamRecorder, now: int) -> bool:
        """Report nothing."""
        return False


class Clock:
    """The clock of the SDK, set by the bench."""

    def __init__(self) -> None:
        self.ns = 0

    def __call__(self) -> int:
        return self.ns


class Stepped(Worker):
    """A worker without a thread, run by the bench. Without ``silences`` it reports no silent streams."""

    silences = True

    def _report(self, recorder: StreamRecorder, live: Any, now: int) -> None:
        if self.silences:
            super()._report(recorder, live, now)
        elif now >= live.due_ns:
            live.silence = Mute()
            super()._report(recorder, live, now)

    def _start(self) -> None:
        pass

    def drain(self) -> None:
        """Complete the streams that have ended."""
        while not self._queue.empty():
            self._complete_ended(0.0)


def events(stream: RecordedStream) -> Iterator[tuple[int, bytes, int]]:
    """Yield (µs, bytes, items passed to the application) of each read."""
    head = f'data: {{"id":"chatcmpl-{stream.name}","object":"chat.completion.chunk","created":1,"model":"demo","choices":'
    for at, chunks in groupby(stream.chunks, key=lambda chunk: chunk[0]):
        parts, items = [], 0
        for _, size, kind in chunks:
            items += kind != DONE
            if kind == ROLE:
                parts.append(head + '[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]}')
            elif kind == USAGE and stream.usage:
                prompt, output = stream.usage
                usage = f'{{"prompt_tokens":{prompt},"total_tokens":{prompt + output},"completion_tokens":{output}}}'
                parts.append(head + f'[{{"index":0,"delta":{{}},"logprobs":null,"finish_reason":"length"}}],"usage":{usage}}}')
            elif kind == DONE:
                parts.append("data: [DONE]")
            else:
                text = "x" * max(1, size - ENVELOPE)
                delta = f'[{{"index":0,"delta":{{"content":"{text}"}},"logprobs":null,"finish_reason":null}}]'
                parts.append(f"{head}{delta}}}")
        yield at, "".join(part + "\n\n" for part in parts).encode(), items


def play(stream: RecordedStream, worker: Stepped, clock: Clock, rng: random.Random) -> None:
    """Replay one recorded stream through the SDK, at its recorded times."""
    start = stream.start_ns - anchor_ns()
    clock.ns = start
    origin = Origin(
        model="demo",
        provider="openai",
        transport="http/1.1",
        client_address="127.0.0.1",
        client_port=stream.port,
        server_address="127.0.0.1",
        server_port=8000,
        conversation_id=f"conversation-{stream.name}",
        client_hash=f"{rng.getrandbits(64):016x}",
    )
    recorder = legato._stream.begin(origin, start_ns=start, sse=True)
    recorder.ttfb_ns = start + stream.head_us * 1000
    for at, data, items in events(stream):
        _advance(worker, clock, start + at * 1000)
        recorder.read((clock.ns, data))
        for _ in range(items):
            recorder.held(int(1000 * rng.lognormvariate(5.298, 1.98)))
    _advance(worker, clock, start + stream.end_us * 1000)
    recorder.end(stream.outcome)
    worker.drain()


def _advance(worker: Stepped, clock: Clock, until_ns: int) -> None:
    """Let the time pass, with the worker's ticks."""
    while until_ns - clock.ns > TICK_NS:
        clock.ns += TICK_NS
        worker.tick()
    clock.ns = until_ns
    worker.tick()


def timeline_bytes(streams: list[RecordedStream]) -> int:
    """Return the bytes of the timelines, without holds."""
    total = 0
    for stream in streams:
        times, sizes, kinds = (list(column) for column in zip(*stream.chunks, strict=True))
        total += len(pack(times, [max(0, size - ENVELOPE) for size in sizes], None, kinds))
    return total


def main() -> None:
    """Replay all recordings and print the figures."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--recordings", type=pathlib.Path, default=ROOT / "demo" / "recordings")
    given = options.parse_args()
    streams = streams_of(given.recordings)
    ended, complete = measure(streams, 0), measure(streams, SNAPSHOT_INTERVAL_MS)
    snapshots = measure(streams, SNAPSHOT_INTERVAL_MS, silences=False)
    chunks = sum(len(stream.chunks) for stream in streams)
    print(describe("opentelemetry-sdk"))
    more = f"{snapshots.spans - ended.spans} more spans with snapshots, {complete.spans - snapshots.spans} with silences"
    print(f"{chunks:,} chunks of {len(streams)} streams; {more}")
    figures = {
        "bytes_per_chunk": round(ended.bytes / chunks, 3),
        "timeline_bytes_per_chunk": round(timeline_bytes(streams) / chunks, 3),
        "bytes_per_chunk_with_snapshots": round(snapshots.bytes / chunks, 3),
        "bytes_per_chunk_with_snapshots_and_silences": round(complete.bytes / chunks, 3),
        "n_chunks": chunks,
        "n_snapshots": snapshots.spans - ended.spans,
        "n_silences": complete.spans - snapshots.spans,
    }
    print(json.dumps(figures))


def measure(streams: list[RecordedStream], snapshot_interval_ms: int, *, silences: bool = True) -> Sink:
    """Return the sink after the requests of all streams; with an interval of 0 there are no snapshots and no silences."""
    sink, clock, rng = Sink(), Clock(), random.Random(1)
    provider = TracerProvider(resource=Resource.create({"service.name": "bench", "service.version": "1.0.0"}))
    provider.add_span_processor(BatchSpanProcessor(sink, max_queue_size=1 << 20, schedule_delay_millis=3_600_000))
    worker = Stepped(snapshot_interval_ms, clock)
    worker.silences = silences
    replaced: Any = legato._recorder
    replaced.now_ns = clock
    replaced = legato._stream
    replaced.worker = lambda: worker
    replaced = trace
    replaced.get_tracer_provider = lambda: provider
    for stream in streams:
        play(stream, worker, clock, rng)
    provider.force_flush()
    return sink


if __name__ == "__main__":
    main()
