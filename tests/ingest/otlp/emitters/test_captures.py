"""The rows of real emitters' captured traffic, compared with the truth of the server that they streamed from."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from helpers.builders.captures import CAPTURES, Capture, capture
from legato_ingest.otlp.batch import Limits
from legato_ingest.otlp.convert import convert_spans

# Captures without a row, and why: the emitter sends no span (a stream that was left early), or nothing that says that it streamed.
WITHOUT_ROWS = {
    "js-ai-sdk-6-break", "js-ai-sdk-break", "js-ai-sdk-cut", "js-traceloop-openai-plain", "python-litellm-classic-break",
    "python-litellm-v2-break", "python-logfire-break", "python-openai-agents-genai-break", "python-openai-agents-genai-cut",
    "python-openai-agents-genai-plain", "python-openai-agents-openinference-break", "python-openai-agents-openinference-cut",
    "python-openai-agents-openinference-plain", "python-openinference-langchain-break", "python-openinference-langchain-cut",
    "python-openinference-langchain-plain", "python-openlit-break", "python-openlit-cut", "python-openllmetry-google-genai-break",
    "python-openllmetry-google-genai-cut", "python-openllmetry-google-genai-plain", "python-openllmetry-langchain-break",
    "python-openllmetry-langchain-cut", "python-openllmetry-langchain-plain", "python-openllmetry-openai-old-break",
    "python-openllmetry-openai-old-cut", "python-otel-openai-v2-break", "python-otel-openai-v2-cut", "python-otel-openai-v2-plain",
    "python-strands-break", "python-strands-cut", "python-strands-plain", "js-openinference-langchain-plain", "js-openlit-break",
    "js-otel-openai-plain", "js-traceloop-langchain-plain", "python-agent-framework-break", "python-agent-framework-plain",
    "python-elastic-openai-plain", "python-google-adk-break", "python-google-adk-plain", "python-langsmith-plain",
    "python-openai-agents-logfire-plain", "python-openinference-crewai-plain", "python-openinference-google-adk-break",
    "python-openinference-haystack-plain", "python-openllmetry-agno-plain", "python-openllmetry-bedrock-plain",
    "python-openllmetry-crewai-plain", "python-openllmetry-llama-index-plain", "python-openllmetry-openai-agents-break",
    "python-semantic-kernel-break", "python-semantic-kernel-plain",
    "python-azure-inference-plain", "python-autogen-plain", "js-genkit-plain",
    "python-openinference-dspy-break",
}  # fmt: skip
# The right outcomes for each end that the server saw. A break is no provider's error and no `complete`.
OUTCOMES = {
    "complete": {"complete"},
    "client_closed": {"client_cancel", "unknown"},
    "cut": {"upstream_error", "unknown"},
}
# Emitters that send each chunk.
WITH_CHUNKS = (
    "python-openllmetry-openai", "python-traceloop", "python-by-hand", "js-by-hand", "go-by-hand", "python-mlflow",
    "python-openllmetry-cohere", "python-laminar",
)  # fmt: skip
# … and what each chunk carries.
WITH_KINDS = ("python-mlflow",)
FINISH = {
    "tool_calls": {"tool_calls", "tool_call", "tool-calls"},
    "end_turn": {"end_turn", "stop"},
    "tool_use": {"tool_use", "tool_call"},
    "completed": {"completed", "stop"},
    "STOP": {"STOP", "stop"},
}
STEP_US = 80_000
# The zero of Pydantic AI's TTFT is the request, which begins up to this long after the span.
# vLLM's times are the engine's, and those of its capture the client's.
EARLY_US = {"python-pydantic-ai": 150_000, "python-openinference-pydantic-ai": 150_000, "vllm": 50_000}
# A proxy that has just started reads its first chunk late, and so does a library at its first request.
LATE_US = {"python-litellm-proxy": 700_000, "python-otel-genai-anthropic": 150_000}

Row = dict[str, Any]


def rows_of(taken: Capture) -> list[Row]:
    """The rows of a capture, without those of requests that only warmed up the client library."""
    return [row for batch in taken.batches() for row in batch.revs.to_pylist() if row["model"] != "warm-up"]


@pytest.mark.parametrize("name", CAPTURES)
def test_rows_agree_with_the_server(name: str) -> None:
    """Nothing is rejected; each row is right about its response or says that it does not know; each other span is counted with a reason."""
    taken = capture(name)
    rows = rows_of(taken)
    assert not [batch.rejected.to_pylist() for batch in taken.batches() if batch.rejected.num_rows]
    assert bool(rows) == (name not in WITHOUT_ROWS)
    for row in rows:
        truth = truth_of(row, taken)
        if truth is None:
            continue
        # LiteLLM's proxy reads a stream to its end when its client has left.
        ended = "client_closed" if name.startswith("python-litellm-proxy") and name.endswith("-break") else truth["outcome"]
        # A span that ended with the headers shows no end, nor does a usage of Anthropic alone.
        shows_no_end = "end_unknown" in row["flags"] or (row["provider"], row["finish_reason"]) == ("anthropic", "")
        assert row["outcome"] in OUTCOMES[ended] | ({"unknown"} if shows_no_end else set()), row
        # vLLM's spans do not name the model.
        assert row["model"].removeprefix("openai/") == ("" if name.startswith("vllm") else truth["model"])
        assert row["vantage"] == ("engine" if name.startswith("vllm") else "gateway" if "-proxy" in name else "client")
        if ended == "complete":
            assert row["finish_reason"] in ({""} | FINISH.get(truth["finish"], {truth["finish"]}))
            assert row["input_tokens"] in (None, truth["input_tokens"])
            # OpenLLMetry adds the one token of Anthropic's first event to the total.
            assert row["output_tokens"] in (
                None,
                truth["output_tokens"],
                truth["output_tokens"] + name.startswith("python-openllmetry-anthropic"),
            )
        check_first(name, row, truth)
        check_gaps(name, row, truth)
    # The text of the responses, and the prompt.
    stored = [table.to_pylist() for batch in taken.batches() for table in (batch.revs, batch.rejected)]
    assert not any(text in str(stored) for text in ("w000", "Count."))


def truth_of(row: Row, taken: Capture) -> dict[str, Any] | None:
    """The truth about a row's response; of an emitter without ids that of the only response."""
    if row["response_id"]:
        return taken.truth[row["response_id"]]
    return next(iter(taken.truth.values())) if len(taken.truth) == 1 else None


def check_first(name: str, row: Row, truth: dict[str, Any]) -> None:
    """TTFT is unknown, or the time of the first chunk with the flag that says so, or the time of the first content."""
    if row["ttft_us"] is None:
        return
    first_ns = (truth["role_ns"] if "ttft_any_chunk" in row["flags"] else 0) or truth["content_ns"][0]
    found_us = int(row["start_time"].timestamp() * 1e6) + row["ttft_us"] - first_ns // 1000
    early_us, late_us = (sum(us for prefix, us in table.items() if name.startswith(prefix)) for table in (EARLY_US, LATE_US))
    assert -early_us - 1_000 <= found_us <= late_us + STEP_US, (name, found_us)


def check_gaps(name: str, row: Row, truth: dict[str, Any]) -> None:
    """Emitters with an event a chunk have the stall, and its length; others have no gap at all."""
    if not name.startswith(WITH_CHUNKS) or name == "python-openllmetry-openai-responses":
        assert row["gap_max_us"] is None and row["chunks"] is None and row["dt_us"] == []
        return
    assert ("kinds_unknown" in row["flags"]) != name.startswith(WITH_KINDS)
    if "head_unknown" in row["flags"]:
        assert (row["ttft_us"], row["content_chunks"], len(row["dt_us"])) == (None, None, 128)
        assert row["chunks"] == len(truth["content_ns"]) + 3
        return
    if name.startswith(WITH_KINDS):
        assert (row["content_chunks"], row["ttfo_us"] is None) == (len(truth["content_ns"]), name.endswith("-tools"))
    else:
        assert row["ttfo_us"] is None
    end_us = int(row["start_time"].timestamp() * 1e6) + row["duration_ns"] // 1000
    received = [at for at in truth["content_ns"] if at // 1000 <= end_us]
    longest_us = max((after - before) // 1000 for before, after in pairwise(received))
    assert abs(row["gap_max_us"] - longest_us) < STEP_US and row["stalls_250ms"] == (longest_us >= 250_000)


@pytest.mark.parametrize("name", [name for name in CAPTURES if name.endswith("-plain")])
def test_openlits_provider_changes_no_row(name: str) -> None:
    """OpenLIT sets the provider of a process, with its name in the resource: spans of other libraries are still theirs."""
    taken = capture(name)
    for body in taken.traces():
        before = convert_spans(body, tenant="", now_ns=taken.now_ns, limits=Limits()).revs.to_pylist()
        for each in body.resource_spans:
            each.resource.attributes.add(key="telemetry.sdk.name").value.string_value = "openlit"
        assert convert_spans(body, tenant="", now_ns=taken.now_ns, limits=Limits()).revs.to_pylist() == before


def test_a_pair_of_spans_is_one_row() -> None:
    """Logfire's second span becomes the row, from the headers on; however requests are cut, the row is the same."""
    for name in ("python-logfire-plain", "python-logfire-nested"):
        (row,) = rows_of(capture(name))
        assert row["flags"] == ["start_at_headers"] and row["ttfb_us"] is None
        assert 1_850_000_000 < row["duration_ns"] < 2_000_000_000


def test_ignored_spans_are_counted_with_their_scope_and_the_reason() -> None:
    """An emitter that says nothing about streaming is named, so that its user learns why nothing is stored."""
    (batch,) = capture("python-otel-openai-v2-plain").batches()
    assert dict(batch.senders) == {("", "capture", "opentelemetry.instrumentation.openai_v2", "", "otel-genai", "streaming unknown"): 1}
    (batch,) = capture("python-elastic-openai-plain").batches()
    assert [(sender[-2], sender[-1]) for sender in batch.senders] == [("otel-genai", "streaming unknown")]
