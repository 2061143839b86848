"""What the Python emitters share: the scenario, the request, and an OpenTelemetry set-up. Runs in the emitter's environment.

The runner gives the scenario as the first argument, the fake server as OPENAI_BASE_URL and ANTHROPIC_BASE_URL, and the sink as
OTEL_EXPORTER_OTLP_ENDPOINT.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterable, Iterable

SCENARIO = sys.argv[1]
BREAK_AFTER = 12
# The fake server answers this model with one chunk and keeps no truth of it.
WARM_UP = "warm-up"
MODEL = "gpt-4o-mini"
CLAUDE = "claude-sonnet-4-5"
MESSAGES = [{"role": "user", "content": "Count."}]
SINK = os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT", "")
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
FUNCTION = {"name": "weather", "description": "The weather of a city.", "parameters": PARAMETERS}


def chat_request(model: str = MODEL) -> dict[str, object]:
    """Return the arguments of `chat.completions.create` for the scenario."""
    tools = {"tools": [{"type": "function", "function": FUNCTION}]} if SCENARIO == "tools" else {}
    return {"model": model, "messages": MESSAGES, "stream": True, "stream_options": {"include_usage": True}, **tools}


def open_stream(client: object) -> Iterable[object]:
    """Start the scenario's stream of openai: the responses API in "responses", chat completions otherwise."""
    if SCENARIO == "responses":
        return client.responses.create(model=MODEL, input="Count.", stream=True)
    return client.chat.completions.create(**chat_request())


def messages_request(model: str = CLAUDE) -> dict[str, object]:
    """Return the arguments of Anthropic's `messages.create` for the scenario, without `stream`."""
    tool = {"name": "weather", "description": FUNCTION["description"], "input_schema": PARAMETERS}
    return {"model": model, "messages": MESSAGES, "max_tokens": 100, **({"tools": [tool]} if SCENARIO == "tools" else {})}


def consume(stream: Iterable[object]) -> None:
    """Iterate as the application of the scenario does: 12 items in "break", all otherwise. A cut stream's error ends here."""
    try:
        for index, _ in enumerate(stream, 1):
            if SCENARIO == "break" and index == BREAK_AFTER:
                return
    except Exception as error:
        report(error)


async def consume_async(stream: AsyncIterable[object]) -> None:
    """`consume` for an asynchronous stream."""
    index = 0
    try:
        async for _ in stream:
            index += 1
            if SCENARIO == "break" and index == BREAK_AFTER:
                return
    except Exception as error:
        report(error)


def consume_concurrently() -> None:
    """Read three streams of chat completions at the same time in one event loop, begun 100 ms apart."""
    from openai import AsyncOpenAI

    async def one(client: object, delay_s: float) -> None:
        await asyncio.sleep(delay_s)
        await consume_async(await client.chat.completions.create(**chat_request()))

    async def three() -> None:
        async with AsyncOpenAI(max_retries=0) as client:
            await asyncio.gather(*(one(client, delay_s) for delay_s in (0, 0.1, 0.2)))

    asyncio.run(three())


def report(error: Exception) -> None:
    """Print an expected error (the cut); raise any other."""
    if SCENARIO != "cut":
        raise error
    print(f"as planned: {type(error).__name__}: {error}")


def tracing(service: str = "capture") -> object:
    """Set up a tracer provider with the OTLP exporter over http/protobuf, as the application of an instrumentation does."""
    from opentelemetry import trace
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    provider = TracerProvider(resource=Resource.create({"service.name": service}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)
    return provider


def metering() -> object:
    """Set up a meter provider that exports once, at the end."""
    from opentelemetry import metrics
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader

    provider = MeterProvider([PeriodicExportingMetricReader(OTLPMetricExporter(), export_interval_millis=60_000)])
    metrics.set_meter_provider(provider)
    return provider


def openai_client() -> object:
    """Return a client that has its connection open and its types built, so that the capture holds no start-up time."""
    from openai import OpenAI

    client = OpenAI(max_retries=0)
    if SCENARIO == "responses":
        stream = client.responses.create(model=WARM_UP, input="Count.", stream=True)
    else:
        stream = client.chat.completions.create(**chat_request(WARM_UP))
    for _ in stream:
        pass
    return client
