"""Spans by the OpenTelemetry GenAI semantic conventions alone: a summary without chunks.

They can carry the model, the token usage, how the response ended, and the time to the first chunk. That chunk may be of any kind, a role
prelude included, so its time is stored as TTFT with the flag ``ttft_any_chunk``. They cannot carry gaps: every gap statistic of such a row
is NULL. Only spans of streamed responses are converted; all others are ignored.
"""

from __future__ import annotations

from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from legato_ingest.otlp.attributes import Attributes
from legato_ingest.otlp.emitters.common import genai_record
from legato_ingest.otlp.model import StreamRecord

__all__ = ["convert"]

_TIMEOUT_WORDS = ("timeout", "deadline")


def convert(span: Span, attributes: Attributes) -> StreamRecord | None:
    """Return the record of a span with a GenAI summary of a streamed response; None for any other span. Raises ``AttributeFault``."""
    streamed = "gen_ai.response.time_to_first_chunk" in attributes.own or attributes.flag("gen_ai.request.stream")
    if not streamed:
        return None
    error_type = attributes.text("error.type")
    record = genai_record(
        span,
        attributes,
        emitter=attributes.text("telemetry.sdk.name") or "semconv",
        vantage="server" if span.kind == Span.SPAN_KIND_SERVER else "client",
        outcome=_outcome(span, error_type),
    )
    record.provider = record.provider or attributes.text("gen_ai.system")
    if record.ttft_us is not None:
        record.flags.append("ttft_any_chunk")
    return record


def _outcome(span: Span, error_type: str) -> str:
    """Return the outcome. The conventions define no value for a cancel, so a span without an error counts as complete."""
    if span.status.code != Status.STATUS_CODE_ERROR and not error_type:
        return "complete"
    lowered = error_type.lower()
    return "timeout" if any(word in lowered for word in _TIMEOUT_WORDS) else "upstream_error"
