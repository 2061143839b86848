"""What spans around a response add to its row: some libraries note how a stream ended on the span of the agent or of the server alone.

Only spans of the same library and of the same export are used, so an application's own failures change no row, and the rows of emitters
that send each span alone keep what their own span shows. The two spans of LiteLLM's proxy end within 40 ms, and one exporter sends both
every 5 s, so fewer than 1 of 100 streams that were left are in two exports; rows are not rewritten for these.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from opentelemetry.proto.trace.v1.trace_pb2 import Span

from legato_ingest.definitions import UNKNOWN_OUTCOME
from legato_ingest.otlp.attributes import attribute_map
from legato_ingest.otlp.emitters.foreign import error_type_of, outcome_of
from legato_ingest.otlp.emitters.litellm import FAMILY as LITELLM
from legato_ingest.otlp.emitters.pydantic_ai import FAMILY as PYDANTIC_AI
from legato_ingest.otlp.model import StreamRecord

__all__ = ["Failed", "with_failures"]

_NEAR_NS = 1_000_000_000
# Scopes of the server that LiteLLM's proxy runs in.
_SERVER_SCOPES = ("fastapi", "litellm", "opentelemetry.instrumentation.fastapi", "opentelemetry.instrumentation.asgi")


@dataclass(frozen=True, slots=True)
class Failed:
    """An ignored span with an error, and the scope that made it."""

    span: Span
    scope: str


def with_failures(records: Sequence[StreamRecord], failed: Sequence[Failed]) -> None:
    """Correct the outcomes of records by the failed spans around them.

    Pydantic AI has a stream's error on the agent's span, the parent. LiteLLM's proxy calls each stream complete, with a usage that it made
    up, when its client has left; only the server's span, which ends at the same time, shows that.
    """
    agents = {(each.span.trace_id, each.span.span_id): each.span for each in failed if each.scope.startswith(PYDANTIC_AI)}
    servers = {
        each.span.trace_id: each.span
        for each in failed
        if each.span.kind == Span.SPAN_KIND_SERVER and each.scope.startswith(_SERVER_SCOPES)
    }
    for record in records:
        family = record.emitter.partition("/")[0]
        agent, server = agents.get((record.trace_id, record.parent_span_id)), servers.get(record.trace_id)
        if family == PYDANTIC_AI and record.outcome == UNKNOWN_OUTCOME and agent is not None:
            record.error_type = error_type_of(agent, attribute_map(agent.attributes))
            record.outcome = outcome_of(agent, record)
        elif family == LITELLM and record.vantage == "gateway" and record.outcome == "complete" and server is not None:
            _correct(record, server)


def _correct(record: StreamRecord, server: Span) -> None:
    """Take back what LiteLLM's proxy made up about a stream, if the server's span failed when it ended."""
    if abs(server.end_time_unix_nano - record.end_ns) > _NEAR_NS:
        return
    record.finish_reason, record.input_tokens, record.output_tokens = "", None, None
    left = outcome_of(server, replace(record, error_type=error_type_of(server, attribute_map(server.attributes))))
    record.outcome = "client_cancel" if left in ("upstream_error", "client_cancel") else UNKNOWN_OUTCOME
