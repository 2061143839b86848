"""What spans around a response add to its row: some libraries note how a stream ended on the span of the agent or of the server alone.

Only spans of the same export are seen, so the rows of emitters that send each span alone keep what their own span shows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from opentelemetry.proto.trace.v1.trace_pb2 import Span

from legato_ingest.definitions import UNKNOWN_OUTCOME
from legato_ingest.otlp.emitters.foreign import error_type_of, outcome_of
from legato_ingest.otlp.emitters.litellm import FAMILY as LITELLM
from legato_ingest.otlp.model import StreamRecord

__all__ = ["with_failures"]


def with_failures(records: Sequence[StreamRecord], failed: Sequence[Span]) -> None:
    """Correct the outcomes of records by the failed spans around them.

    Pydantic AI has a stream's error on the agent's span, the parent. LiteLLM's proxy calls each stream complete, with a usage that it made
    up, when its client has left; only the server's span of the trace shows that.
    """
    by_span = {(span.trace_id, span.span_id): span for span in failed}
    servers = {span.trace_id: span for span in failed if span.kind == Span.SPAN_KIND_SERVER}
    for record in records:
        parent, server = by_span.get((record.trace_id, record.parent_span_id)), servers.get(record.trace_id)
        if record.outcome == UNKNOWN_OUTCOME and parent is not None:
            record.error_type = error_type_of(parent)
            record.outcome = outcome_of(parent, record)
        elif record.outcome == "complete" and server is not None and record.emitter.partition("/")[0] == LITELLM:
            record.finish_reason, record.input_tokens, record.output_tokens = "", None, None
            left = outcome_of(server, replace(record, error_type=error_type_of(server)))
            record.outcome = "client_cancel" if left in ("upstream_error", "client_cancel") else UNKNOWN_OUTCOME
