"""Observations of Langfuse's SDKs (Python and JavaScript) of the type generation.

The start of the completion is the time of the first chunk, which may be the role; only streamed responses have it. Usage and finish reason
are JSON texts. Langfuse takes cached, reasoning and other kinds of tokens out of `input` and `output`, and sends them beside these; a row
has their sum. Chat completions have no response id. A stream that was left early and one that broke look alike: no status, no finish
reason.

Other libraries and applications add the type for Langfuse's server. Such a span is left to its own family, if it has no start of the
completion or an event for each chunk.
"""

from __future__ import annotations

from opentelemetry.proto.trace.v1.trace_pb2 import Span

from legato_ingest.otlp.attributes import Attributes
from legato_ingest.otlp.emitters.chunk_events import chunk_events
from legato_ingest.otlp.emitters.foreign import Loose, add_ttft, count_of, foreign_record, outcome_of, streamed_of
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
# What the LangChain handlers and JavaScript's wrapper of OpenAI take out of `input` and `output`; `cached_modality_` is Vertex AI's. The
# wrapper of OpenAI in Python has `prompt_tokens` or `input_tokens` instead, which are whole, and its details are objects.
_INPUT, _OUTPUT = ("input_", "cached_modality_"), ("output_",)
_WHOLE = ("input_tokens", "output_tokens")
# All tokens of a request with OpenAI's service tier, once more; since version 4, Python's handler does not take them out.
_TIER = ("input_priority", "output_priority")


def convert(span: Span, attributes: Attributes) -> StreamRecord | Ignored | None:
    """Return the record of a streamed response; None for a span of another emitter."""
    loose = Loose(attributes)
    kind = loose.text(_TYPE)
    if not kind:
        return None
    if kind != "generation":
        return Ignored("outer span", _FAMILY)
    first_us = unix_micros(loose.text(_FIRST))
    if not attributes.scope.startswith(_FAMILY) and (first_us is None or chunk_events(span, streamed=streamed_of(loose)) is not None):
        return None
    if first_us is None:
        return Ignored("streaming unknown", _FAMILY)
    record = foreign_record(span, attributes, loose, _FAMILY)
    record.finish_reason = record.finish_reason or loose.text(*_FINISH)
    record.response_id = record.response_id or loose.text(_ID)
    usage = loose.json(_USAGE)
    if isinstance(usage, dict):
        record.input_tokens, record.output_tokens = _tokens(usage)
    record.outcome = outcome_of(span, record)
    add_ttft(record, first_us - span.start_time_unix_nano // 1000, any_chunk=True)
    return record


def _tokens(usage: dict[str, object]) -> tuple[int | None, int | None]:
    """Return the tokens of the input and of the output, with the details that were taken out of them.

    Where the usage has a total, it shows which these are: without a tier's, all, or none, for usage that an application made itself.
    """
    details = {key: number for key, value in usage.items() if key not in _WHOLE and (number := count_of(value)) is not None}
    without_tier = {key: number for key, number in details.items() if not key.startswith(_TIER)}
    found = [
        (_sum(usage, "input", _INPUT, each), _sum(usage, "output", _OUTPUT, each)) for each in (without_tier, details, dict[str, int]())
    ]
    total = count_of(usage.get("total"))
    whole = next((each for each in found if None not in each and sum(filter(None, each)) == total), found[0])
    return (
        _count(usage, "prompt_tokens", "input_tokens") if whole[0] is None else whole[0],
        _count(usage, "completion_tokens", "output_tokens") if whole[1] is None else whole[1],
    )


def _sum(usage: dict[str, object], key: str, prefixes: tuple[str, ...], details: dict[str, int]) -> int | None:
    """Return a number of tokens and its details; None without the number."""
    number = count_of(usage.get(key))
    return None if number is None else count_of(number + sum(each for name, each in details.items() if name.startswith(prefixes)))


def _count(usage: dict[str, object], *keys: str) -> int | None:
    return next((found for key in keys if (found := count_of(usage.get(key))) is not None), None)
