"""Flushes of engine steps: the arrays of finished requests, and spans of other families."""

from __future__ import annotations

import pytest

from helpers.builders.spans import any_value, native_span, request
from legato_gpu_agent.agent.otlp_spans import Engine, FinishedRequest, Step, steps_request
from legato_ingest.otlp.attributes import AttributeFault, Attributes, attribute_map
from legato_ingest.otlp.emitters import FAMILIES, engine
from legato_ingest.otlp.model import EngineFlush

ARRAYS = ("response_id", "reason", "step", "preemptions", "prompt_tokens", "output_tokens", "queued_us", "prefill_us", "decode_us")


def flush(**changes: object) -> EngineFlush | None:
    """Convert a flush with one step and two finished requests, with these arrays instead; None leaves one out."""
    finished = [FinishedRequest(1, "a", "stop", 1, 20, 300), FinishedRequest(2, "b", output_tokens=7)]
    body = steps_request(Engine("host:8000", 5), [Step(number=1, recorded_ns=10**18)], finished)
    span = body.resource_spans[0].scope_spans[0].spans[0]
    attributes = attribute_map(span.attributes)
    for name, value in changes.items():
        attributes.pop(f"legato.engine.finished.{name}", None)
        if value is not None:
            attributes[f"legato.engine.finished.{name}"] = any_value(value)
    return engine.convert(span, Attributes(attributes, {}))


def test_absent_arrays_are_empty_or_zero() -> None:
    """All arrays of the record have one length."""
    found = flush(reason=None, prompt_tokens=None)
    assert found is not None and set(found.finished) == set(ARRAYS)
    assert (found.finished["reason"], found.finished["prompt_tokens"], found.finished["output_tokens"]) == (["", ""], [0, 0], [300, 7])


@pytest.mark.parametrize(
    ("name", "value"),
    [("step", [1]), ("reason", ["a", "b", "c"]), ("prompt_tokens", [2**32, 1]), ("queued_us", [-1, 0]), ("response_id", [1, 2])],
)
def test_bad_arrays_are_a_fault(name: str, value: object) -> None:
    """Another length, a value out of range or of another type is reported with the key and without the value."""
    with pytest.raises(AttributeFault, match=f"legato.engine.finished.{name}"):
        flush(**{name: value})


def test_a_stream_is_not_a_flush() -> None:
    """The families are tried in their order: Legato's own first, and last the one that decides on every span."""
    body = request()
    span = native_span(body)
    attributes = Attributes(attribute_map(span.attributes), {})
    assert [name for name, convert in FAMILIES.items() if convert(span, attributes) is not None] == ["native", "semconv"]
    names = list(FAMILIES)
    assert (names[:2], names[-1]) == (["engine", "native"], "semconv")
