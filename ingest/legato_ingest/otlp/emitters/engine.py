"""Spans of Legato's engine agents (schema/STEPS.md).

They carry every step of an engine with its counts, and the requests that the engine finished. They cannot carry which requests were in a
step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from opentelemetry.proto.trace.v1.trace_pb2 import Span

from legato_ingest.otlp.attributes import AttributeFault, Attributes
from legato_ingest.otlp.emitters.common import UINT32_MAX
from legato_ingest.otlp.model import EngineFlush

__all__ = ["COLUMNS", "STEP_COLUMNS", "convert"]

# The numbers of the packed columns that hold a value plus one (0 is unknown), by the names in `engine_steps`. Columns 1 and 2 are `dt` and
# `number`.
STEP_COLUMNS = {
    name: number
    for number, name in enumerate(
        (
            "interval_us", "running", "waiting", "prefill_requests", "prefill_tokens", "decode_requests", "decode_tokens", "draft_tokens",
            "accepted_tokens", "elapsed_us", "kv_used_ppm", "preempted", "interval_max_us",
        ),
        3,
    )
}  # fmt: skip
COLUMNS = frozenset((1, 2, *STEP_COLUMNS.values()))
_STEPS = "legato.engine.steps"
_FINISHED = "legato.engine.finished."
FINISHED_MAX = 65_536
_INT64_MAX = 2**63 - 1
# The arrays of finished requests, each with the largest value allowed; None for an array of strings.
_ARRAYS: dict[str, int | None] = {
    "response_id": None,
    "reason": None,
    "step": _INT64_MAX,
    "preemptions": UINT32_MAX,
    "prompt_tokens": UINT32_MAX,
    "output_tokens": UINT32_MAX,
    "queued_us": _INT64_MAX,
    "prefill_us": _INT64_MAX,
    "decode_us": _INT64_MAX,
}


def convert(span: Span, attributes: Attributes) -> EngineFlush | None:
    """Return the record of a flush of engine steps; None for any other span. Raises ``AttributeFault``."""
    if _STEPS not in attributes.own:
        return None
    engine_id = attributes.text("legato.engine.id")
    if not engine_id:
        raise AttributeFault("legato.engine.id: absent or empty")
    return EngineFlush(
        trace_id=span.trace_id,
        span_id=span.span_id,
        parent_span_id=span.parent_span_id,
        start_ns=span.start_time_unix_nano,
        end_ns=span.end_time_unix_nano,
        emitter=attributes.text("legato.emitter"),
        engine_id=engine_id,
        epoch_ns=attributes.count("legato.engine.epoch") or 0,
        step_first=attributes.count("legato.engine.step_first") or 0,
        timeline=attributes.packed(_STEPS),
        finished=_finished(attributes),
    )


def _finished(attributes: Attributes) -> dict[str, Sequence[Any]]:
    """Return the arrays of finished requests, all of one length; an absent array holds empty strings or zeros."""
    found = {
        name: attributes.texts(_FINISHED + name) if most is None else attributes.counts(_FINISHED + name, most)
        for name, most in _ARRAYS.items()
    }
    count = len(found["response_id"])
    if count > FINISHED_MAX:
        raise AttributeFault(f"{_FINISHED}response_id: more than {FINISHED_MAX} values")
    for name, values in found.items():
        if len(values) not in (0, count):
            raise AttributeFault(f"{_FINISHED}{name}: {len(values)} values for {count} requests")
    # Shared, because a list for each absent array would take more memory than the ids.
    zeros, empty = [0] * count, [""] * count
    return {name: values or (zeros if _ARRAYS[name] is not None else empty) for name, values in found.items()}
