"""Spans of OpenInference that end before their stream, and spans of other libraries that carry OpenInference's attributes."""

from __future__ import annotations

from typing import Any

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from helpers.builders.spans import SECOND_NS, any_value, request, scope_of
from legato_ingest.otlp.batch import Batch, Limits
from legato_ingest.otlp.convert import convert_spans

NOW_NS = 1_795_240_000 * SECOND_NS
OWN = "openinference.instrumentation.llama_index"
LLM = {"openinference.span.kind": "LLM", "llm.model_name": "m"}


def batch_of(
    attributes: dict[str, Any], scope: str = OWN, name: str = "OpenAI.stream_chat", events: dict[str, list[float]] | None = None
) -> Batch:
    """Convert a span of 1 s; ``events`` are seconds after its start, by name."""
    body = request({"service.name": "shop"}, {"x": 1})
    scope_of(body).scope.name = scope
    span = scope_of(body).spans.add(
        trace_id=b"t" * 16,
        span_id=b"s" * 8,
        name=name,
        start_time_unix_nano=NOW_NS,
        end_time_unix_nano=NOW_NS + SECOND_NS,
        kind=Span.SPAN_KIND_CLIENT,
    )
    for key, value in {**LLM, **attributes}.items():
        span.attributes.add(key=key, value=any_value(value))
    for event, times_s in (events or {}).items():
        for time_s in times_s:
            span.events.add(name=event, time_unix_nano=NOW_NS + int(time_s * SECOND_NS))
    return convert_spans(body, tenant="", now_ns=NOW_NS, limits=Limits())


@pytest.mark.parametrize(
    ("event", "after_s", "duration_s", "flags"),
    [
        ("First Token Stream Event", 0.5, 1, ["ttft_any_chunk"]),
        ("First Token Stream Event", 3, 3, ["end_unknown", "ttft_any_chunk"]),
        ("exception", 3, 3, ["end_unknown"]),
        ("exception", 86_400, 1, []),
    ],
)
def test_the_row_ends_with_the_last_event(event: str, after_s: float, duration_s: int, flags: list[str]) -> None:
    """A span that ends before its events ended before its stream; an event of another day has a wrong time."""
    (row,) = batch_of({"llm.token_count.completion": 40}, events={event: [after_s]}).revs.to_pylist()
    assert (row["duration_ns"], row["flags"]) == (duration_s * SECOND_NS, flags)
    assert (row["ttft_us"] is not None) == ("ttft_any_chunk" in flags)


def test_a_response_that_was_not_read_has_an_unknown_end() -> None:
    """The copy of the response is Python's text of the stream; the model is in the parameters alone."""
    unread = {"output.value": "<groq.Stream object at 0x7f93702eab10>", "llm.invocation_parameters": '{"model": "other", "stream": true}'}
    (row,) = batch_of({**unread, "llm.model_name": ""}, name="Completions").revs.to_pylist()
    assert (row["flags"], row["outcome"], row["model"]) == (["end_unknown"], "unknown", "other")


@pytest.mark.parametrize(
    ("attributes", "model", "answered"),
    [
        ({"llm.invocation_parameters": '{"model": "gpt-4o"}'}, "gpt-4o", "gpt-4o-2024-08-06"),
        ({"llm.invocation_parameters": '{"model": "gpt-4o-2024-08-06"}'}, "gpt-4o-2024-08-06", ""),
        ({"llm.request.model_name": "opus"}, "opus", "gpt-4o-2024-08-06"),
        ({"llm.request.model_name": "opus", "llm.response.model_name": "opus-1"}, "opus", "opus-1"),
        ({"gen_ai.request.model": "mine", "llm.invocation_parameters": '{"model": "gpt-4o"}'}, "mine", "gpt-4o-2024-08-06"),
        ({"llm.invocation_parameters": '{"model": 7}'}, "gpt-4o-2024-08-06", ""),
    ],
)
def test_the_model_is_that_of_the_request(attributes: dict[str, Any], model: str, answered: str) -> None:
    """A provider answers by a dated name, which OpenInference's name of the model becomes; dashboards would show two models."""
    (row,) = batch_of({"llm.model_name": "gpt-4o-2024-08-06", **attributes}).revs.to_pylist()
    assert (row["model"], row["response_model"]) == (model, answered)


def test_counters_that_were_never_set_are_unknown() -> None:
    """No request has an empty prompt."""
    (row,) = batch_of({"llm.token_count.prompt": 0, "llm.token_count.completion": 0}).revs.to_pylist()
    assert (row["input_tokens"], row["output_tokens"]) == (None, None)


def test_another_librarys_span_keeps_its_family() -> None:
    """A span processor of OpenInference adds its attributes to spans with an event for each chunk; the gaps are not lost."""
    added = {"llm.is_streaming": True, "llm.invocation_parameters": '{"stream": true}'}
    times_s = [0.1, 0.2, 0.9]
    scope = "opentelemetry.instrumentation.openai.v1"
    (row,) = batch_of(added, scope, "openai.chat", {"llm.content.completion.chunk": times_s}).revs.to_pylist()
    assert (row["emitter"], row["chunks"], row["gap_max_us"]) == ("openllmetry", 3, 700_000)


def test_another_librarys_retrieved_chunks_are_no_stream() -> None:
    """They are not taken for chunks of the response, so OpenInference's time of the first chunk counts."""
    added = {"llm.invocation_parameters": '{"stream": true}'}
    events = {"retrieved_chunk": [0.01, 0.02, 0.03], "First Token Stream Event": [0.5]}
    (row,) = batch_of(added, "mine", "chat", events).revs.to_pylist()
    assert (row["emitter"].partition("/")[0], row["ttft_us"], row["chunks"]) == ("openinference", 500_000, None)


def test_a_gateway_notes_the_first_chunk_at_the_end() -> None:
    """Envoy AI Gateway adds all events when the stream has ended. Its row is not that of the application."""
    scope, name = "envoyproxy/ai-gateway", "ChatCompletion"
    (row,) = batch_of({}, scope, name, {"First Token Stream Event": [0.997]}).revs.to_pylist()
    assert (row["ttft_us"], row["vantage"], row["emitter"].partition("/")[0], row["flags"]) == (None, "gateway", "openinference", [])


@pytest.mark.parametrize(
    ("scope", "reason"),
    [
        (OWN, "streaming unknown"),
        ("@arizeai/openinference-instrumentation-langchain", "streaming unknown"),
        ("openinference.mine", "not streamed"),
    ],
)
def test_only_a_framework_says_false_without_knowing(scope: str, reason: str) -> None:
    """Its parameters are noted before it asks for a stream."""
    batch = batch_of({"llm.invocation_parameters": '{"stream": false}'}, scope, "ChatOpenAI")
    assert [sender[-1] for sender in batch.senders] == [reason]
