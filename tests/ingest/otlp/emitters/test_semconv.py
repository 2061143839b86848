"""Spans by the GenAI semantic conventions alone: values that they carry, and values that stay unknown."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from helpers.builders.spans import SECOND_NS, any_value, request, scope_of
from legato_ingest.otlp.batch import Limits
from legato_ingest.otlp.convert import convert_spans

NOW_NS = 1_795_240_000 * SECOND_NS


def rows(attributes: dict[str, Any], events: dict[str, list[float]] | None = None, **more: Any) -> list[dict[str, Any]]:
    """Return the rows of a request with one span of 1 s with these attributes; ``events`` are ms after its start, by name."""
    body = request({"telemetry.sdk.name": "opentelemetry"}, {"x": 1})
    span = scope_of(body).spans.add(
        trace_id=b"t" * 16,
        span_id=b"s" * 8,
        name="chat m",
        start_time_unix_nano=NOW_NS,
        end_time_unix_nano=NOW_NS + SECOND_NS,
        **{"kind": Span.SPAN_KIND_CLIENT, **more},
    )
    for key, value in attributes.items():
        span.attributes.add(key=key, value=any_value(value))
    for event, times_ms in (events or {}).items():
        for time_ms in times_ms:
            span.events.add(name=event, time_unix_nano=NOW_NS + int(time_ms * 1_000_000))
    return list(convert_spans(body, tenant="", now_ns=NOW_NS, limits=Limits()).revs.to_pylist())


def test_a_summary_has_no_gaps() -> None:
    """It becomes a row with NULL gap statistics, not 0."""
    finished = {"gen_ai.response.finish_reasons": ["stop"]}
    (row,) = rows({"gen_ai.request.model": "m", "gen_ai.response.time_to_first_chunk": 0.25, **finished})
    assert (row["ttft_us"], row["outcome"], row["flags"]) == (250_000, "complete", ["ttft_any_chunk"])
    assert (row["model"], row["emitter"], row["vantage"]) == ("m", "semconv/legato", "client")
    unknown = "ttfo_us ttfb_us chunks gaps gap_max_us gap_p99_us stalls_250ms excess_250ms_us jitter_ratio content_chunks gap_sum_us"
    assert {name: row[name] for name in unknown.split()} == dict.fromkeys(unknown.split())
    assert row["dt_us"] == []


@pytest.mark.parametrize(
    ("error_type", "failed", "outcome"),
    [
        ("", False, "unknown"),
        ("", True, "unknown"),
        ("_OTHER", True, "unknown"),
        ("500", False, "upstream_error"),
        ("GeneratorExit", True, "client_cancel"),
        ("ReadTimeout", True, "timeout"),
        ("DEADLINE_EXCEEDED", False, "timeout"),
    ],
)
def test_the_outcome_follows_the_error(error_type: str, failed: bool, outcome: str) -> None:
    """An error type is an error, a cancel or a time-out; without a finish reason nothing shows that the stream reached its end.

    The kind of the span decides the vantage.
    """
    status = Status(code=Status.STATUS_CODE_ERROR if failed else Status.STATUS_CODE_UNSET)
    attributes = {"gen_ai.request.stream": True, **({"error.type": error_type} if error_type else {})}
    (row,) = rows(attributes, status=status, kind=Span.SPAN_KIND_SERVER)
    assert (row["outcome"], row["error_type"], row["vantage"], row["ttft_us"], row["flags"]) == (outcome, error_type, "server", None, [])


def test_a_span_that_says_not_streamed_is_believed() -> None:
    """Libraries that note a time to the first chunk for all responses note that of the end of a whole one."""
    assert rows({"gen_ai.request.model": "m", "gen_ai.request.stream": False, "gen_ai.response.time_to_first_chunk": 0.25}) == []


def test_the_former_name_of_the_provider_is_read() -> None:
    """`gen_ai.system` is used where `gen_ai.provider.name` is absent."""
    streamed = {"gen_ai.request.stream": True, "gen_ai.system": "a"}
    assert [row["provider"] for row in (*rows(streamed), *rows({**streamed, "gen_ai.provider.name": "b"}))] == ["a", "b"]
    assert rows({"gen_ai.system": "a"}) == []


def test_a_status_is_no_proof_of_an_end() -> None:
    """Several libraries set OK for a stream that was left or broke."""
    (row,) = rows({"gen_ai.request.stream": True}, status=Status(code=Status.STATUS_CODE_OK))
    assert row["outcome"] == "unknown"


@pytest.mark.parametrize(
    ("method", "count"), [("ConverseStream", 1), ("pkg.Service/StreamGenerateContent", 1), ("InvokeModel", 0), ("Converse", 0), ("Chat", 0)]
)
def test_the_method_of_a_remote_call_says_that_it_streams(method: str, count: int) -> None:
    """AWS Bedrock has one method for streams and one for whole responses."""
    assert len(rows({"gen_ai.request.model": "m", "rpc.method": method})) == count


@pytest.mark.parametrize(
    ("values", "ttft_us"),
    [
        ({"copilot_chat.time_to_first_token": 250}, 250_000),
        ({"github.copilot.time_to_first_chunk": 0.25}, 250_000),
        ({"gen_ai.response.time_to_first_token": 250_000_000, "gen_ai.response.total_chunks": 43}, 250_000),
        ({"gen_ai.response.time_to_first_token": 0.25}, None),
    ],
)
def test_the_keys_of_some_emitters_for_the_first_chunk(values: dict[str, Any], ttft_us: int | None) -> None:
    """Copilot in VS Code, Copilot's CLI, and Bifrost; a key that several emitters send in different units is read of Bifrost alone."""
    found = rows({"gen_ai.request.model": "m", "gen_ai.operation.name": "chat", **values})
    assert [(row["ttft_us"], row["flags"]) for row in found] == ([] if ttft_us is None else [(ttft_us, ["ttft_any_chunk"])])


EACH_25_MS = [400.0 + 25 * each for each in range(20)]


@pytest.mark.parametrize(
    ("events", "chunks", "ttft_us"),
    [
        ({"event src/llm.rs:88": [900.0 + 5 * each for each in range(12)]}, None, 400_000),
        ({"gen_ai.choice": [998.0] * 8}, None, 400_000),
        ({"gen_ai.evaluation.result": [998.0] * 8}, None, 400_000),
        ({"retrieved_chunk": [5, 6]}, None, 400_000),
        ({"chunk": [2, 3, 4, 5, 6]}, None, 400_000),
        ({"retrieved_chunk": [5, 6], "gen_ai.chunk": EACH_25_MS}, 20, 400_000),
        ({"my.token": EACH_25_MS}, 20, 400_000),
        ({"gen_ai.chunk": [600, 700]}, 2, 600_000),
    ],
)
def test_events_that_contradict_the_time_of_the_first_chunk_are_no_chunks(
    events: dict[str, list[float]], chunks: int | None, ttft_us: int
) -> None:
    """Log entries, choices that were read together and retrieved documents are events of one name, too. Names for chunks alone count."""
    named = {"gen_ai.request.model": "m", "gen_ai.request.stream": True, "gen_ai.response.time_to_first_chunk": 0.4}
    (row,) = rows(named, events)
    assert (row["chunks"], row["ttft_us"]) == (chunks, ttft_us)


def test_a_prelude_may_precede_the_first_content() -> None:
    """So events before the time of the first content contradict nothing; if the first one is later, they are none of chunks."""
    named = {"gen_ai.request.stream": True, "gen_ai.client.operation.time_to_first_chunk": 0.6}
    assert [row["chunks"] for row in rows(named, {"my.token": EACH_25_MS})] == [20]
    ((row,),) = [rows(named, {"log": [900.0 + each for each in range(9)]})]
    assert (row["chunks"], row["ttft_us"], row["flags"]) == (None, 600_000, [])


def test_retrieved_documents_make_no_stream() -> None:
    """A chat that does not say whether it streamed, with an event for each document before the response."""
    assert rows({"gen_ai.request.model": "m", "gen_ai.response.finish_reasons": ["stop"]}, {"chunk": [2, 3, 4, 5, 6]}) == []


def test_a_first_chunk_in_ms_or_as_a_time() -> None:
    """Claude Code sends ms; Mastra sends a time, which is the end where the response was not streamed."""
    named = {"gen_ai.request.model": "m", "gen_ai.operation.name": "chat"}
    (row,) = rows({**named, "ttft_ms": 250, "input_tokens": 3, "output_tokens": 7, "stop_reason": "end_turn"})
    assert (row["ttft_us"], row["input_tokens"], row["output_tokens"], row["finish_reason"]) == (250_000, 3, 7, "end_turn")
    start = datetime.fromtimestamp(NOW_NS / 1e9, UTC)
    first, last = ((start + timedelta(milliseconds=each)).isoformat() for each in (250, 995))
    (row,) = rows({**named, "mastra.completion_start_time": first})
    assert (row["ttft_us"], row["flags"], row["outcome"]) == (250_000, [], "unknown")
    assert rows({**named, "mastra.completion_start_time": last}) == []
