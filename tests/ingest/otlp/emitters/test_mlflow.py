"""Chunks of MLflow's events: the kind and the size of each, and copies that are no chunks."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from helpers.builders.spans import any_value
from legato_ingest.otlp.emitters.mlflow import content_of

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(("choices", "delta", "type", "tool_calls", "content", "x")), inner)
    ),
    max_leaves=12,
)


def event(chunk: Any) -> Span.Event:
    """An event with this chunk."""
    made = Span.Event(name="mlflow.chunk.item.0")
    made.attributes.add(key="mlflow.chunk.value", value=any_value(chunk if isinstance(chunk, str) else json.dumps(chunk)))
    return made


def completion(finish_reason: str | None = None, **delta: Any) -> dict[str, Any]:
    """A chunk of a chat completion."""
    return {"id": "c", "choices": [{"delta": delta, "finish_reason": finish_reason}]}


@pytest.mark.parametrize(
    ("chunk", "expected"),
    [
        (completion(role="assistant", content=""), (0, 0)),
        (completion(content="größe"), (1, 7)),
        (completion(reasoning_content="why"), (2, 3)),
        (completion(tool_calls=[{"function": {"name": "f", "arguments": "{}"}}]), (3, 3)),
        (completion("stop", content=None), (7, 0)),
        ({"choices": [], "usage": {}}, (4, 0)),
        ({"type": "response.created"}, (0, 0)),
        ({"type": "response.output_text.delta", "delta": "ab"}, (1, 2)),
        ({"type": "response.reasoning_summary_text.delta", "delta": "abc"}, (2, 3)),
        ({"type": "response.function_call_arguments.delta", "delta": "{"}, (3, 1)),
        ({"type": "response.completed"}, (4, 0)),
        ({"other": 1}, None),
        ("no JSON", None),
        ("[" * 100_000, None),
    ],
)
def test_the_kind_and_size_of_a_chunk(chunk: Any, expected: tuple[int, int] | None) -> None:
    """Of both interfaces of OpenAI; another format says nothing."""
    assert content_of(event(chunk)) == expected


@given(chunk=JSON)
def test_any_json_is_a_chunk_or_none(chunk: Any) -> None:
    """Lists in place of objects and numbers in place of texts carry nothing."""
    found = content_of(event(chunk))
    assert found is None or (found[0] in range(8) and found[1] >= 0)
