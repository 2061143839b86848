"""Lenient reading of foreign spans: outcomes, times that contradict the span, and values of any type."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from helpers.builders.spans import SECOND_NS, any_value, request, scope_of
from legato_ingest.emitters import BY_NAME, IGNORED
from legato_ingest.otlp.attributes import Attributes, attribute_map
from legato_ingest.otlp.batch import Limits
from legato_ingest.otlp.convert import convert_spans
from legato_ingest.otlp.emitters.foreign import Loose, add_ttft, foreign_record

NOW_NS = 1_795_240_000 * SECOND_NS
# Scopes by which families recognise their spans.
SCOPES = (
    "com.anthropic.sdk.python", "pydantic-ai", "logfire.openai", "langfuse-sdk", "litellm", "openlit.instrumentation.openai", "ai",
    "gen_ai", "openinference.instrumentation.openai", "opentelemetry.instrumentation.openai.v1",
    "opentelemetry.instrumentation.genai.openai", "mine", "",
)  # fmt: skip
KEYS = (
    "gen_ai.request.stream", "gen_ai.is_streaming", "llm.is_streaming", "gen_ai.response.time_to_first_chunk", "gen_ai.operation.name",
    "gen_ai.client.operation.time_to_first_chunk", "gen_ai.request.model", "gen_ai.response.id", "gen_ai.response.finish_reasons",
    "gen_ai.usage.output_tokens", "langfuse.observation.type", "langfuse.observation.completion_start_time",
    "langfuse.observation.usage_details", "openinference.span.kind", "llm.invocation_parameters", "output.value", "duration",
    "request_data", "server.port", "error.type", "ai.response.msToFirstChunk", "ai.operationId", "service.name", "telemetry.sdk.name",
)  # fmt: skip
TEXTS = ("generation", "LLM", "chat", '"2026-11-23T15:26:25.646018Z"', '{"output": 3}', '{"id": 7}', "[[[[", '["stop"]', "True", "nan")
VALUES = st.one_of(
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(),
    st.text(max_size=30),
    st.binary(max_size=8),
    st.lists(st.text(max_size=9), max_size=3),
    st.sampled_from(TEXTS),
)
TRACEBACK = (
    "Traceback (most recent call last):\n\n\n"
    '  File "httpcore/_async/http11.py", line 106, in handle_async_request\n    event = self._receive_event(timeout=timeout)\n\n\n'
)
NAMES = ("chunk", "gen_ai.choice", "exception", "First Token Stream Event")


def span_of(attributes: dict[str, Any], **more: Any) -> tuple[Span, Attributes]:
    """A span of 2 s with these attributes."""
    span = Span(
        trace_id=b"t" * 16,
        span_id=b"s" * 8,
        start_time_unix_nano=NOW_NS,
        end_time_unix_nano=NOW_NS + 2 * SECOND_NS,
        kind=Span.SPAN_KIND_CLIENT,
        **more,
    )
    for key, value in attributes.items():
        span.attributes.add(key=key, value=any_value(value))
    return span, Attributes(attribute_map(span.attributes), {}, "scope", "1")


@pytest.mark.parametrize(
    ("error_type", "message", "finish", "tokens", "outcome"),
    [
        ("", "", "stop", None, "complete"),
        ("", "", "", 40, "complete"),
        ("", "", "error", None, "upstream_error"),
        ("", "", "cancelled", 7, "client_cancel"),
        ("", "", "unknown", None, "unknown"),
        ("", "", "length", None, "complete"),
        ("", "", "", None, "unknown"),
        ("_OTHER", "", "", None, "unknown"),
        ("_OTHER", "abandoned stream", "", None, "client_cancel"),
        ("GeneratorExit", "", "", None, "client_cancel"),
        ("asyncio.CancelledError", "", "", 3, "client_cancel"),
        ("httpx.ReadTimeout", "", "", None, "timeout"),
        ("openai.APIConnectionError", "Connection error.", "", None, "upstream_error"),
        ("500", "", "", None, "upstream_error"),
        ("499", "client closed request", "", None, "client_cancel"),
        ("408", "", "", None, "timeout"),
        ("504", "", "", None, "timeout"),
        ("aiohttp.client_exceptions.ServerDisconnectedError", "Server disconnected", "", 3, "upstream_error"),
        ("httpx.RemoteProtocolError", "Server disconnected without sending a response.", "", None, "upstream_error"),
        ("openai.InternalServerError", "Error code: 503 - upstream connect error or disconnect/reset", "", None, "upstream_error"),
        ("requests.exceptions.ConnectionError", "('Connection aborted.', RemoteDisconnected('…'))", "", None, "upstream_error"),
        ("litellm.exceptions.InternalServerError", "OpenAIException - Server disconnected", "", None, "upstream_error"),
        ("openai.RateLimitError", "Your subscription was cancelled: quota exceeded", "", None, "upstream_error"),
        ("Error", "403 Your subscription was cancelled", "", None, "upstream_error"),
        ("ECONNABORTED", "", "", None, "upstream_error"),
        ("ECONNABORTED", "timeout of 1000ms exceeded", "", None, "timeout"),
        ("grpc.aio.AioRpcError", "StatusCode.ABORTED", "", None, "upstream_error"),
        ("grpc.aio.AioRpcError", "StatusCode.CANCELLED", "", None, "client_cancel"),
        ("TimeoutError", "The operation was aborted due to timeout", "", None, "timeout"),
        ("23", "The operation was aborted due to timeout", "", None, "timeout"),
        ("20", "This operation was aborted", "", None, "client_cancel"),
        ("openai.APIUserAbortError", "Request was aborted.", "", None, "client_cancel"),
        ("starlette.requests.ClientDisconnect", "", "", None, "client_cancel"),
        ("*url.Error", 'Post "https://localhost:443/v1": context canceled', "", None, "client_cancel"),
        ("*url.Error", "net/http: request canceled (Client.Timeout exceeded while awaiting headers)", "", None, "timeout"),
        ("fastapi.exceptions.HTTPException", "499: Client disconnected", "", None, "client_cancel"),
        ("", "GeneratorExit()", "", None, "client_cancel"),
        ("", "", "abort", 7, "client_cancel"),
        (
            "a.ConnectionError",
            f"ConnectionError('Connection error.'){TRACEBACK}a.ConnectionError: Connection error.",
            "",
            1,
            "upstream_error",
        ),
        ("", f"GeneratorExit(){TRACEBACK}GeneratorExit", "", None, "client_cancel"),
        ("", f"{TRACEBACK}openai.APITimeoutError: Request timed out.", "", None, "timeout"),
    ],
)
def test_the_outcome_claims_no_more_than_the_span_shows(
    error_type: str, message: str, finish: str, tokens: int | None, outcome: str
) -> None:
    """A break is no provider's error, a provider that went away is no break, and only a finish reason or a usage shows an end."""
    values = {"error.type": error_type, "gen_ai.response.finish_reason": finish, "gen_ai.usage.output_tokens": tokens}
    code = Status.STATUS_CODE_ERROR if error_type or message else Status.STATUS_CODE_UNSET
    span, attributes = span_of({key: value for key, value in values.items() if value}, status=Status(code=code, message=message))
    assert foreign_record(span, attributes, Loose(attributes), "semconv").outcome == outcome


@pytest.mark.parametrize(
    ("ttft_us", "values", "stored", "flags"),
    [
        (300_000, {"gen_ai.usage.output_tokens": 40}, 300_000, []),
        (-2_000, {}, 0, []),
        (-2_001, {}, None, ["ttft_before_start"]),
        (2_100_000, {}, None, ["ttft_after_end"]),
        (2_000_000, {"gen_ai.usage.output_tokens": 40}, None, ["ttft_is_duration"]),
        (2_000_000, {"gen_ai.usage.output_tokens": 1}, 2_000_000, []),
        (2_000_000, {"gen_ai.response.finish_reasons": "stop"}, None, ["ttft_is_duration"]),
        (2_000_000, {}, 2_000_000, []),
        # A long time of reasoning and a short answer.
        (1_990_000, {"gen_ai.response.finish_reasons": "stop"}, 1_990_000, []),
    ],
)
def test_a_ttft_that_contradicts_the_span_is_flagged(ttft_us: int, values: dict[str, Any], stored: int | None, flags: list[str]) -> None:
    """It cannot be before the start or after the end, and several tokens do not arrive in no time. Clocks may differ by 2 ms.

    A stream may be left at its first token.
    """
    span, attributes = span_of(values)
    record = foreign_record(span, attributes, Loose(attributes), "semconv")
    add_ttft(record, ttft_us, any_chunk=False)
    assert (record.ttft_us, record.flags) == (stored, flags)


EARLY_NS = NOW_NS - 18_000 * SECOND_NS
EARLY = "2026-11-18T10:00:00Z"


@pytest.mark.parametrize(
    ("scope", "attributes", "events"),
    [
        ("langfuse-sdk", {"langfuse.observation.type": "generation", "langfuse.observation.completion_start_time": EARLY}, {}),
        ("openinference.mine", {"openinference.span.kind": "LLM", "llm.model_name": "m"}, {"First Token Stream Event": 1}),
        ("mine", {"langwatch.timestamps": json.dumps({"first_token_at": EARLY_NS // 1_000_000})}, {}),
        ("mine", {"mastra.completion_start_time": EARLY}, {}),
        ("agentops", {}, {"first_token_received": 1}),
        ("mine", {"gen_ai.request.stream": True}, {"gen_ai.chunk": 3}),
        ("mlflow.tracing.provider", {"mlflow.spanType": "LLM"}, {"mlflow.chunk.item": 3}),
    ],
)
def test_a_first_chunk_before_the_start_has_no_ttft(scope: str, attributes: dict[str, Any], events: dict[str, int]) -> None:
    """A clock that is hours behind gives no TTFT of 0, and the row stays."""
    body = request({"service.name": "shop"}, {"x": 1})
    scope_of(body).scope.name = scope
    span, _ = span_of({"gen_ai.request.model": "m", **attributes})
    for name, count in events.items():
        for each in range(count):
            event = span.events.add(name=name, time_unix_nano=EARLY_NS + each)
            if scope.startswith("mlflow"):
                event.attributes.add(key="mlflow.chunk.value", value=any_value('{"choices": [{"delta": {"content": "a"}}]}'))
    scope_of(body).spans.append(span)
    (row,) = convert_spans(body, tenant="", now_ns=NOW_NS, limits=Limits()).revs.to_pylist()
    assert (row["ttft_us"], row["ttfo_us"], "ttft_before_start" in row["flags"]) == (None, None, True)


@pytest.mark.parametrize(
    ("sent", "stored"),
    [
        ('["stop"]', "stop"),
        ('[{"type": "stop", "matched": 128009}]', "stop"),
        ('[{"type": "x", "finish_reason": "length"}]', "length"),
        ('[{"matched": 7}]', ""),
        ("[7]", ""),
        ("[]", ""),
        ("['stop']", "stop"),
        ("[{'type': 'stop'}]", ""),
        ('["stop", "' + "x" * 2_000, "stop"),
        ('[{"type": "' + "x" * 2_000, ""),
        ('"stop"', "stop"),
        ("[fast] m", "[fast] m"),
    ],
)
def test_a_list_in_a_text_gives_its_first_text(sent: str, stored: str) -> None:
    """A finish reason is a name, never the source text of a list."""
    span, attributes = span_of({"gen_ai.response.finish_reasons": sent})
    assert foreign_record(span, attributes, Loose(attributes), "x").finish_reason == stored


def test_texts_out_of_json_can_be_stored() -> None:
    """JavaScript cuts texts inside of characters; the half of one is replaced, and nothing is rejected."""
    body = request({"service.name": "shop"}, {"x": 1})
    scope_of(body).scope.name, scope_of(body).scope.version = "mine", "v" * 5_000
    span, _ = span_of({"gen_ai.request.stream": True, "gen_ai.response.finish_reasons": '["\\ud83d"]'})
    scope_of(body).spans.append(span)
    (row,) = convert_spans(body, tenant="", now_ns=NOW_NS, limits=Limits()).revs.to_pylist()
    # The version of a scope is copied into each row, so its length is limited.
    assert row["finish_reason"] == "?" and len(row["emitter"]) < 300


def test_a_service_has_one_name_at_all_emitters() -> None:
    """A number as name or version has the text that rows of Legato's own emitters have, also where the span is ignored."""
    body = request({"service.name": 42, "service.version": 1.2}, {"x": 1})
    scope_of(body).scope.name = "mine"
    for stream in (True, False):
        scope_of(body).spans.append(span_of({"gen_ai.request.stream": stream})[0])
    batch = convert_spans(body, tenant="", now_ns=NOW_NS, limits=Limits())
    assert [(row["service_name"], row["service_version"]) for row in batch.revs.to_pylist()] == [("42", "1.2")]
    assert {sender[1] for sender in batch.senders} == {"42"}


def test_an_applications_own_failure_changes_no_outcome() -> None:
    """A parent that failed for another reason says nothing about a stream that was left."""
    body = request({"service.name": "shop"}, {"x": 1})
    scope_of(body).scope.name = "opentelemetry.instrumentation.openai.v1"
    left, _ = span_of({"gen_ai.is_streaming": True, "gen_ai.request.model": "m"})
    left.parent_span_id = b"p" * 8
    parent, _ = span_of({"error.type": "KeyError"}, status=Status(code=Status.STATUS_CODE_ERROR))
    parent.span_id = b"p" * 8
    scope_of(body).spans.extend([left, parent])
    (row,) = convert_spans(body, tenant="", now_ns=NOW_NS, limits=Limits()).revs.to_pylist()
    assert (row["outcome"], row["error_type"]) == ("unknown", "")


@pytest.mark.parametrize(
    ("scope", "flag"),
    [("mine", "gen_ai.request.stream"), ("opentelemetry.instrumentation.openai.v1", "gen_ai.is_streaming")],
)
@pytest.mark.parametrize(
    ("name", "streamed", "count"),
    [
        ("gen_ai.content.completion.chunk", False, 0),
        ("gen_ai.content.completion.chunk", None, 1),
        ("retrieved_chunk", False, 0),
        ("retrieved_chunk", None, 0),
        ("cache.lookup", None, 0),
        ("token", True, 1),
    ],
)
def test_a_call_that_did_not_stream_is_no_stream(scope: str, flag: str, name: str, streamed: bool | None, count: int) -> None:
    """Whatever events it has: an application may note what it retrieved, and its look-ups."""
    body = request({"service.name": "shop"}, {"x": 1})
    scope_of(body).scope.name = scope
    span, _ = span_of({"gen_ai.request.model": "m", **({} if streamed is None else {flag: streamed})})
    for each in range(12):
        span.events.add(name=name, time_unix_nano=NOW_NS + each * 1_000_000)
    scope_of(body).spans.append(span)
    batch = convert_spans(body, tenant="", now_ns=NOW_NS, limits=Limits())
    assert batch.revs.num_rows == count
    if not count:
        assert [sender[-1] for sender in batch.senders] == ["streaming unknown" if streamed is None else "not streamed"]


def test_the_last_exception_names_the_error() -> None:
    """Where the span has no error type, the recorded exception has it."""
    span, attributes = span_of({})
    for name in ("ValueError", "httpx.RemoteProtocolError"):
        event = span.events.add(name="exception", time_unix_nano=NOW_NS)
        event.attributes.add(key="exception.type", value=any_value(name))
    assert foreign_record(span, attributes, Loose(attributes), "x").error_type == "httpx.RemoteProtocolError"


@pytest.mark.parametrize(
    ("code", "attributes", "expected"),
    [
        (Status.STATUS_CODE_OK, {"gen_ai.response.finish_reasons": "stop"}, ("complete", "")),
        (Status.STATUS_CODE_UNSET, {"gen_ai.response.finish_reasons": "length"}, ("complete", "")),
        (Status.STATUS_CODE_OK, {"gen_ai.usage.output_tokens": 12}, ("upstream_error", "openai.RateLimitError")),
        (Status.STATUS_CODE_OK, {"gen_ai.response.finish_reasons": "unknown"}, ("upstream_error", "openai.RateLimitError")),
        (Status.STATUS_CODE_OK, {"gen_ai.response.finish_reasons": "error"}, ("upstream_error", "openai.RateLimitError")),
        (Status.STATUS_CODE_ERROR, {"gen_ai.response.finish_reasons": "stop"}, ("upstream_error", "openai.RateLimitError")),
        (Status.STATUS_CODE_OK, {"gen_ai.response.finish_reasons": "stop", "error.type": "KeyError"}, ("upstream_error", "KeyError")),
    ],
)
def test_an_exception_that_the_library_survived_is_no_failure(code: Any, attributes: dict[str, Any], expected: tuple[str, str]) -> None:
    """It records the exception of an attempt, and tries again. LangSmith's failed streams have status OK, too, but no finish reason."""
    span, own = span_of(attributes, status=Status(code=code))
    event = span.events.add(name="exception", time_unix_nano=NOW_NS)
    event.attributes.add(key="exception.type", value=any_value("openai.RateLimitError"))
    record = foreign_record(span, own, Loose(own), "semconv")
    assert (record.outcome, record.error_type) == expected


@pytest.mark.parametrize(("value", "error_type"), [(500, "500"), (503.0, "503"), ("500", "500"), (0, ""), (True, ""), (-1, "")])
def test_a_number_is_an_error_type(value: Any, error_type: str) -> None:
    """A status of HTTP; 0 is no error."""
    span, attributes = span_of({"error.type": value}, status=Status(code=Status.STATUS_CODE_ERROR))
    record = foreign_record(span, attributes, Loose(attributes), "semconv")
    assert (record.error_type, record.outcome) == (error_type, "upstream_error" if error_type else "unknown")


@given(
    scope=st.sampled_from(SCOPES),
    values=st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=10),
    events=st.lists(st.tuples(st.sampled_from(NAMES), st.integers(0, 2**64 - 1)), max_size=20),
)
def test_any_foreign_span_is_stored_or_ignored_with_a_reason(scope: str, values: dict[str, Any], events: list[tuple[str, int]]) -> None:
    """Values of any type and times of any kind reject nothing, fail nothing and keep figures in their ranges."""
    body = request({"service.name": "shop"}, {"x": 1})
    scope_of(body).scope.name = scope
    span, _ = span_of(values)
    for name, at in events:
        span.events.add(name=name, time_unix_nano=at)
    scope_of(body).spans.append(span)
    batch = convert_spans(body, tenant="", now_ns=NOW_NS, limits=Limits())
    assert batch.rejected.num_rows == 0
    assert batch.revs.num_rows + batch.ignored == 1
    for _, _, _, _, emitter, reason in batch.senders:
        assert reason in IGNORED and (not emitter or emitter in BY_NAME)
    for row in batch.revs.to_pylist():
        assert row["emitter"].partition("/")[0] in BY_NAME
        assert row["ttft_us"] is None or row["ttft_us"] <= row["duration_ns"] // 1000 + 1_000
        assert sum(row["dt_us"]) <= 2_000_000
