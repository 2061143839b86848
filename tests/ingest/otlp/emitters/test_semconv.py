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


def rows(attributes: dict[str, Any], **more: Any) -> list[dict[str, Any]]:
    """Return the rows of a request with one span with these attributes."""
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
