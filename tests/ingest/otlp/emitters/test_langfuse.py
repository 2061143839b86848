"""Observations of Langfuse: whole numbers of tokens, and spans of other emitters with a type for Langfuse or MLflow."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from helpers.builders.spans import SECOND_NS, any_value, request, scope_of
from legato_ingest.otlp.attributes import Attributes, attribute_map
from legato_ingest.otlp.batch import Limits
from legato_ingest.otlp.convert import convert_spans
from legato_ingest.otlp.emitters import langfuse
from legato_ingest.otlp.model import StreamRecord

NOW_NS = 1_795_240_000 * SECOND_NS
FIRST = datetime.fromtimestamp(NOW_NS / SECOND_NS + 0.3, UTC).isoformat()


def span_of(attributes: dict[str, Any]) -> Span:
    """A span of 2 s with these attributes."""
    end_ns = NOW_NS + 2 * SECOND_NS
    span = Span(trace_id=b"t" * 16, span_id=b"s" * 8, start_time_unix_nano=NOW_NS, end_time_unix_nano=end_ns)
    for key, value in attributes.items():
        span.attributes.add(key=key, value=any_value(value))
    return span


CACHED = {"input_cache_read": 9_900, "output_reasoning": 2_000}
TIER = {"input_priority": 9_000, "input_priority_cache_read": 1_000, "output_priority": 2_050}


@pytest.mark.parametrize(
    ("usage", "tokens"),
    [
        ({"input": 100, "output": 50, "total": 12_050, **CACHED}, (10_000, 2_050)),
        ({"input": 100, "output": 50, **CACHED}, (10_000, 2_050)),
        ({"input": 100, "output": 0, "output_reasoning": 2_000}, (100, 2_000)),
        # Vertex AI: the prompt by modality, less what was cached.
        ({"input": 0, "output": 7, "input_modality_TEXT": 60, "cached_modality_TEXT": 40, "total": 107}, (100, 7)),
        # Details that were not taken out.
        ({"input": 10_000, "output": 2_050, "total": 12_050, **CACHED}, (10_000, 2_050)),
        # A tier's details repeat all tokens: Python's handler since version 4, and the one before, which takes them out.
        ({"input": 10_000, "output": 2_050, "total": 12_050, **TIER}, (10_000, 2_050)),
        ({"input": 10_000, "output": 50, "output_reasoning": 2_000, "total": 12_050, **TIER}, (10_000, 2_050)),
        ({"input": 0, "output": 0, "total": 12_050, **TIER}, (10_000, 2_050)),
        # Python's wrapper of OpenAI: chat completions, and the Responses API.
        ({"prompt_tokens": 10_000, "completion_tokens": 2_050, "prompt_tokens_details": {"cached_tokens": 9_900}}, (10_000, 2_050)),
        ({"input_tokens": 10_000, "output_tokens": 2_050, "output_tokens_details": {"reasoning_tokens": 9}}, (10_000, 2_050)),
        ({"input": "7", "output": True, "input_x": [3], "output_y": None}, (None, None)),
        ({"input": 2**32 - 1, "output": 2, "input_x": 9}, (None, 2)),
    ],
)
def test_langfuse_tokens_are_whole(usage: dict[str, Any], tokens: tuple[int | None, int | None]) -> None:
    """Langfuse takes the cached and the reasoning tokens out of those of the input and the output; a row counts them."""
    span = span_of(
        {
            "langfuse.observation.type": "generation",
            "langfuse.observation.completion_start_time": FIRST,
            "langfuse.observation.usage_details": json.dumps(usage),
        }
    )
    record = langfuse.convert(span, Attributes(attribute_map(span.attributes), {}, "langfuse-sdk"))
    assert isinstance(record, StreamRecord) and (record.input_tokens, record.output_tokens) == tokens
    assert record.outcome == ("complete" if tokens[1] else "unknown")


STREAMED = {"gen_ai.request.model": "m", "gen_ai.request.stream": True, "gen_ai.response.time_to_first_chunk": 0.4}
GENERATION = {"langfuse.observation.type": "generation"}
CHAT = {"mlflow.spanType": '"CHAT_MODEL"'}


@pytest.mark.parametrize(
    ("scope", "attributes", "chunks", "emitter"),
    [
        ("litellm", {**STREAMED, **GENERATION}, 0, "litellm"),
        ("mine", {**STREAMED, **GENERATION}, 0, "semconv"),
        (
            "opentelemetry.instrumentation.openai.v1",
            {"gen_ai.request.model": "m", "gen_ai.is_streaming": True, **GENERATION},
            12,
            "openllmetry",
        ),
        (
            "opentelemetry.instrumentation.openai.v1",
            {"gen_ai.request.model": "m", **GENERATION, "langfuse.observation.completion_start_time": FIRST},
            12,
            "openllmetry",
        ),
        ("mine", {**GENERATION, "langfuse.observation.completion_start_time": FIRST}, 0, "langfuse"),
        ("mine", {**STREAMED, **CHAT}, 0, "semconv"),
        ("opentelemetry.instrumentation.openai.v1", {"gen_ai.request.model": "m", "gen_ai.is_streaming": True, **CHAT}, 12, "openllmetry"),
    ],
)
def test_a_type_for_another_backend_hides_no_stream(scope: str, attributes: dict[str, Any], chunks: int, emitter: str) -> None:
    """Libraries and applications add the types of Langfuse and MLflow to their own spans."""
    body = request({"service.name": "shop"}, {"x": 1})
    scope_of(body).scope.name = scope
    span = span_of(attributes)
    for each in range(chunks):
        span.events.add(name="gen_ai.content.completion.chunk", time_unix_nano=NOW_NS + (300 + 25 * each) * 1_000_000)
    scope_of(body).spans.append(span)
    batch = convert_spans(body, tenant="", now_ns=NOW_NS, limits=Limits())
    rows = [(row["emitter"].partition("/")[0], row["chunks"], row["ttft_us"], row["model"]) for row in batch.revs.to_pylist()]
    is_langfuse = emitter == "langfuse"
    ttft_us = 300_000 if chunks or is_langfuse else 400_000
    assert rows == [(emitter, chunks or None, ttft_us, "" if is_langfuse else "m")]
