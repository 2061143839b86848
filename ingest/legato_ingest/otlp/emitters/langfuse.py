"""Observations of Langfuse's SDKs (Python and JavaScript) of the type generation.

The start of the completion is the time of the first chunk, which may be the role; only streamed responses have it. Usage and finish reason
are JSON texts. Chat completions have no response id. A stream that was left early and one that broke look alike: no status, no finish
reason.
"""

from __future__ import annotations

from opentelemetry.proto.trace.v1.trace_pb2 import Span

from legato_ingest.otlp.attributes import Attributes
from legato_ingest.otlp.emitters.foreign import Loose, add_ttft, count_of, foreign_record, outcome_of
from legato_ingest.otlp.emitters.spellings import unix_micros
from legato_ingest.otlp.model import Ignored, StreamRecord

__all__ = ["convert"]

_FAMILY = "langfuse"
_TYPE = "langfuse.observation.type"
_FIRST = "langfuse.observation.completion_start_time"
_USAGE = "langfuse.observation.usage_details"
# Of chat completions, and of the Responses API, which also has the response's id.
_FINISH = ("langfuse.observation.metadata.finish_reason", "langfuse.observation.metadata.status")
_ID = "langfuse.observation.metadata.id"


def convert(span: Span, attributes: Attributes) -> StreamRecord | Ignored | None:
    """Return the record of a streamed response; None for a span of another emitter."""
    loose = Loose(attributes)
    kind = loose.text(_TYPE)
    if not kind:
        return None
    if kind != "generation":
        return Ignored("outer span", _FAMILY)
    first_us = unix_micros(loose.text(_FIRST))
    if first_us is None:
        return Ignored("streaming unknown", _FAMILY)
    record = foreign_record(span, attributes, loose, _FAMILY)
    record.finish_reason = record.finish_reason or loose.text(*_FINISH)
    record.response_id = record.response_id or loose.text(_ID)
    usage = loose.json(_USAGE)
    if isinstance(usage, dict):
        record.input_tokens = _count(usage, "input", "prompt_tokens", "input_tokens")
        record.output_tokens = _count(usage, "output", "completion_tokens", "output_tokens")
    record.outcome = outcome_of(span, record)
    add_ttft(record, max(0, first_us - span.start_time_unix_nano // 1000), any_chunk=True)
    return record


def _count(usage: dict[str, object], *keys: str) -> int | None:
    return next((found for key in keys if (found := count_of(usage.get(key))) is not None), None)
