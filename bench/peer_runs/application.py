"""The application of `bench/peers.py`: concurrent streams of the real `openai` client, with one instrumentation, or none.

It runs in the environment of the instrumentation, with its default configuration and the exporter over OTLP/HTTP. After a warm-up it prints
`ready` and waits for a line; then it reads the streams, flushes, and prints one JSON object: the latency of each chunk from its send to
the application's loop in µs, processor time in s, and of each stream what the application saw.

    python application.py CONTESTANT SCENARIO STREAMS MODEL      # SCENARIO: read, break, kill
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

CONTESTANT, SCENARIO, STREAMS, MODEL = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
SINK = os.environ["OTEL_EXPORTER_OTLP_ENDPOINT"]
BREAK_AFTER, AFTER_BREAK_S = 12, 3
WARM_UP = "bench:30:5"
MESSAGES = [{"role": "user", "content": "Count."}]


def providers() -> Callable[[], object]:
    """Set up OpenTelemetry as the guides of the instrumentations do; return its flush."""
    from opentelemetry import metrics, trace
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    tracer = TracerProvider()
    tracer.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(tracer)
    meter = MeterProvider([PeriodicExportingMetricReader(OTLPMetricExporter())])
    metrics.set_meter_provider(meter)
    return lambda: (tracer.force_flush(), meter.force_flush())


def bare() -> Callable[[], object]:
    return lambda: None


def legato() -> Callable[[], object]:
    import legato as sdk

    sdk.configure(service_name="bench", endpoint=SINK)
    sdk.instrument()
    return sdk.flush


def openllmetry() -> Callable[[], object]:
    from opentelemetry.instrumentation.openai import OpenAIInstrumentor

    flush = providers()
    OpenAIInstrumentor().instrument()
    return flush


def openinference() -> Callable[[], object]:
    from openinference.instrumentation.openai import OpenAIInstrumentor

    flush = providers()
    OpenAIInstrumentor().instrument()
    return flush


def genai() -> Callable[[], object]:
    from opentelemetry.instrumentation.genai.openai import OpenAIInstrumentor

    flush = providers()
    OpenAIInstrumentor().instrument()
    return flush


def openlit() -> Callable[[], object]:
    import openlit as sdk
    from opentelemetry import metrics, trace

    # Without a price list OpenLIT asks the network for one.
    with open("prices.json", "w", encoding="utf-8") as prices:
        json.dump({"chat": {}}, prices)
    sdk.init(pricing_json="prices.json", otlp_endpoint=SINK, application_name="bench")
    tracer: Any = trace.get_tracer_provider()
    meter: Any = metrics.get_meter_provider()
    return lambda: (tracer.force_flush(), meter.force_flush())


def langfuse() -> Callable[[], object]:
    from langfuse import get_client, openai

    assert openai
    return lambda: get_client().flush()


def logfire() -> Callable[[], object]:
    import logfire as sdk

    sdk.configure(send_to_logfire=False, service_name="bench", console=False, inspect_arguments=False)
    sdk.instrument_openai()
    return sdk.force_flush


SET_UPS = {each.__name__: each for each in (bare, legato, openllmetry, openinference, genai, openlit, langfuse, logfire)}


class Seen:
    """What the application saw of one stream. Times are monotonic ns, the start also in ns since 1970."""

    def __init__(self) -> None:
        self.response_id = ""
        self.start_wall_ns = self.start_ns = 0
        self.times: list[int] = []
        self.is_done = False

    def figures(self) -> dict[str, Any]:
        """Return the stream's entry of the output."""
        gaps = [after - before for before, after in zip(self.times, self.times[1:], strict=False)]
        return {
            "response_id": self.response_id,
            "start_ns": self.start_wall_ns,
            "ttft_us": (self.times[0] - self.start_ns) / 1e3 if self.times else None,
            "gap_max_us": max(gaps, default=0) / 1e3,
            "chunks": len(self.times),
            "done": self.is_done,
        }


async def read(client: Any, model: str, seen: Seen, latencies: list[int]) -> None:
    """Read one stream as an application does."""
    now, times = time.monotonic_ns, seen.times
    seen.start_wall_ns, seen.start_ns = time.time_ns(), now()
    stream = await client.chat.completions.create(model=model, messages=MESSAGES, stream=True, stream_options={"include_usage": True})
    async for chunk in stream:
        content = chunk.choices[0].delta.content if chunk.choices else None
        if content:
            at = now()
            latencies.append(at - int(content))
            times.append(at)
            if SCENARIO == "break" and len(times) == BREAK_AFTER and model != WARM_UP:
                seen.response_id = chunk.id
                return
        else:
            seen.response_id = chunk.id
    seen.is_done = True


def models() -> Iterator[str]:
    """The model of each stream. Those of "kill" end one after the other within 12.5 s, and as many go on for long."""
    for number in range(STREAMS):
        yield f"bench:{50 + 30 * number}:20" if SCENARIO == "kill" else MODEL
    if SCENARIO == "kill":
        yield from ["bench:1500:20"] * STREAMS


async def application(flush: Callable[[], object]) -> dict[str, Any]:
    """Warm up, wait for the start, read all streams, flush."""
    from openai import AsyncOpenAI

    if CONTESTANT == "langfuse":
        from langfuse.openai import AsyncOpenAI  # type: ignore[no-redef]
    latencies: list[int] = []
    async with AsyncOpenAI(max_retries=0) as client:
        await asyncio.gather(*(read(client, WARM_UP, Seen(), []) for _ in range(STREAMS)))
        flush()
        print("ready", flush=True)
        sys.stdin.readline()
        began_s, started_s = time.process_time(), time.monotonic()
        seen = [Seen() for _ in models()]
        ended = asyncio.gather(*(read(client, model, each, latencies) for model, each in zip(models(), seen, strict=False)))
        if SCENARIO == "kill":
            print("running", flush=True)
        await ended
        stream_cpu_s = time.process_time() - began_s
        if SCENARIO == "break":
            await asyncio.sleep(AFTER_BREAK_S)
        with contextlib.suppress(Exception):
            flush()
    return {
        "latencies_us": [round(each / 1e3, 1) for each in latencies],
        "stream_cpu_s": stream_cpu_s,
        "cpu_s": time.process_time() - began_s,
        "wall_s": time.monotonic() - started_s,
        "streams": [each.figures() for each in seen],
    }


if __name__ == "__main__":
    print(json.dumps(asyncio.run(application(SET_UPS[CONTESTANT]()))), flush=True)
