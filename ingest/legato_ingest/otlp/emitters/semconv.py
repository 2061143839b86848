"""Spans by the OpenTelemetry GenAI semantic conventions alone: a summary, no chunks.

They can say the model, the usage, how the response ended, and the time to the first chunk (of any kind: role prelude included, so it
is stored as TTFT with the flag ``ttft_any_chunk``). They cannot say a single gap: every gap figure of such a row is NULL. Only spans
of streamed responses are taken; others are none of Legato's business.
"""

from __future__ import annotations

from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from legato_ingest.otlp.attributes import Attributes
from legato_ingest.otlp.emitters.common import facts_of
from legato_ingest.otlp.model import StreamFacts

__all__ = ["adapt"]

_TIMEOUT_WORDS = ("timeout", "deadline")


def adapt(span: Span, attributes: Attributes) -> StreamFacts | None:
    """The facts of a span with a GenAI summary of a streamed response; ``None`` for any other. Raises ``AttributeFault``."""
    streamed = "gen_ai.response.time_to_first_chunk" in attributes.own or attributes.flag("gen_ai.request.stream")
    if not streamed:
        return None
    error_type = attributes.text("error.type")
    facts = facts_of(
        span,
        attributes,
        emitter=attributes.text("telemetry.sdk.name") or "semconv",
        vantage="server" if span.kind == Span.SPAN_KIND_SERVER else "client",
        outcome=_outcome(span, error_type),
    )
    facts.provider = facts.provider or attributes.text("gen_ai.system")
    if facts.ttft_us is not None:
        facts.flags.append("ttft_any_chunk")
    return facts


def _outcome(span: Span, error_type: str) -> str:
    """The conventions have no word for a cancel: a span without an error is taken as complete."""
    if span.status.code != Status.STATUS_CODE_ERROR and not error_type:
        return "complete"
    lowered = error_type.lower()
    return "timeout" if any(word in lowered for word in _TIMEOUT_WORDS) else "upstream_error"
