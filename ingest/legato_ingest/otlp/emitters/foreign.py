"""What the families of foreign emitters share: lenient reading of attributes, one record of a response, its outcome.

Foreign spans are read leniently: a value of another type than expected is unknown, because a stream should not be lost for an attribute
that Legato does not need. Each fact is read by all keys under which any family sends it; no key has two meanings. Texts of prompts and
responses are never read, but for the response's id in OpenInference's copy of the response. A family decides which spans are responses, and
which of its times can be trusted.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from legato_ingest.definitions import UNKNOWN_OUTCOME
from legato_ingest.otlp.attributes import TEXT_CHARACTERS_MAX, Attributes, attribute_map, number_text
from legato_ingest.otlp.emitters.chunk_events import ChunkEvents
from legato_ingest.otlp.emitters.common import PORT_MAX, UINT32_MAX
from legato_ingest.otlp.emitters.spellings import error_name, finish_name, host_of, port_of, provider_name, said_of
from legato_ingest.otlp.model import StreamRecord

__all__ = [
    "ANY_CHUNK",
    "END_UNKNOWN",
    "ENVOY",
    "GENAI_SCOPES",
    "OUTER_OPERATIONS",
    "Loose",
    "add_chunks",
    "add_ttft",
    "count_of",
    "error_type_of",
    "foreign_record",
    "object_of",
    "outcome_of",
    "plain",
    "streamed_of",
]

# TTFT of a row with this flag is the time to the first chunk, which may be a prelude without content.
ANY_CHUNK = "ttft_any_chunk"
# The span of a row with this flag ended before its stream did.
END_UNKNOWN = "end_unknown"
# The first chunk of a row with this flag has a time before its span, so TTFT is unknown.
_BEFORE_START = "ttft_before_start"
# Values of `gen_ai.operation.name` of spans around requests and beside them: agents, chains, tools, retrieval; `framework` is Spring AI's,
# the last three are Mastra's.
OUTER_OPERATIONS = frozenset(
    ("invoke_agent", "create_agent", "execute_tool", "invoke_workflow", "embeddings", "retrieval", "framework",
     "agent_step", "model_generation", "model_chunk")
)  # fmt: skip
# Scopes of the GenAI instrumentations of the OpenTelemetry project.
GENAI_SCOPES = (
    "opentelemetry.instrumentation.genai.", "opentelemetry.instrumentation.openai_v2", "opentelemetry.instrumentation.google_genai",
    "opentelemetry.util.genai", "opentelemetry.instrumentation.botocore",
)  # fmt: skip
# The scope of Envoy AI Gateway.
ENVOY = "envoyproxy/ai-gateway"

_STREAMED = (
    "gen_ai.request.stream", "gen_ai.request.is_stream", "gen_ai.request.streaming", "gen_ai.is_streaming", "llm.is_streaming",
    "langsmith.request.streaming",
)  # fmt: skip
# The methods of AWS Bedrock that stream nothing.
_UNARY = ("Converse", "InvokeModel")
_MODEL = ("gen_ai.request.model", "llm.request.model", "llm.request.model_name", "llm.model_name", "langfuse.observation.model.name",
          "ai.model.id", "model")  # fmt: skip
_RESPONSE_MODEL = ("gen_ai.response.model", "llm.response.model", "llm.response.model_name", "ai.response.model")
_RESPONSE_ID = ("gen_ai.response.id", "ai.response.id", "llm.response.id")
_PROVIDER = ("gen_ai.provider.name", "gen_ai.system", "llm.provider", "llm.system", "ai.model.provider",
             "langfuse.observation.metadata.ls_provider")  # fmt: skip
_FINISH = (
    "gen_ai.response.finish_reasons", "gen_ai.response.finish_reason", "llm.finish_reason", "llm.response.finish_reason",
    "llm.response.stop_reason", "anthropic.message.stop_reason", "ai.response.finishReason", "gen_ai.completion.0.finish_reason",
    "llm.completions.0.finish_reason", "stop_reason",
)  # fmt: skip
_INPUT = ("gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens", "llm.token_count.prompt", "llm.usage.prompt_tokens",
          "ai.usage.inputTokens", "ai.usage.promptTokens", "input_tokens")  # fmt: skip
_OUTPUT = ("gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens", "llm.token_count.completion", "llm.usage.completion_tokens",
           "ai.usage.outputTokens", "ai.usage.completionTokens", "output_tokens")  # fmt: skip
# Finish reasons of a stream that its client left, of one that broke, and those that show no end.
_LEFT = re.compile(r"cancel|abort|abandon|disconnect", re.IGNORECASE)
_BROKEN = ("error", "failed")
_NO_END = ("unknown", "in_progress", "queued", "none", "null")
_TIMED_OUT = re.compile(r"time.?out|deadline", re.IGNORECASE)
# Types of errors, and words of messages, that say that the client left. A server also disconnects, and aborts connections.
_CANCELS = r"AbortError|GeneratorExit|client.?disconnect"
_CANCEL_TYPE = re.compile(rf"cancel|{_CANCELS}|WebSocketDisconnect", re.IGNORECASE)
_CANCEL_SAID = re.compile(
    rf"{_CANCELS}|CancelledError|\bcancell?ed\b|abandoned stream|(?:operation|request) was aborted|user aborted", re.IGNORECASE
)
# Statuses of HTTP that say more than that the provider failed; 499 is that of a client that left.
_OF_STATUS = {"408": "timeout", "504": "timeout", "499": "client_cancel"}
# Errors that the provider answered: what is cancelled then is no stream.
_ANSWERED = re.compile(
    r"RateLimit|ServerError|StatusError|CallError|Unavailable|Overloaded|BadRequest|Denied|(?:(?:code|status)\W{0,3}|^)(?:4(?!99)|5)\d\d\b",
    re.IGNORECASE | re.MULTILINE,
)
# Texts of lists that are not JSON: Python's, and those that were cut.
_LIST = re.compile(r"""\[\s*[\["'{]""")
_FIRST_TEXT = re.compile(r"""\[\s*(["'])([^"'\\]*)\1""")
# An error type of the conventions that names no error.
_OTHER = "_OTHER"
_ERROR_TYPE = "error.type"
_LAST_EVENTS = 8
# A TTFT this close to the duration of a stream of several tokens is the duration: several libraries set it so where they saw no first
# chunk.
_SAME_US = 1_000
# A time of a first chunk may be rounded to ms, and come from another clock than the span's start. An earlier one is wrong.
_EARLY_US = 2_000
# A parsed value takes up to 240 bytes.
_JSON_CHARACTERS_MAX, _JSON_VALUES_MAX = 1_048_576, 32_768


class Loose:
    """Lenient access to the attributes of a span: a value of another type than expected is unknown, as if it were absent."""

    __slots__ = ("_get",)

    def __init__(self, attributes: Attributes) -> None:
        self._get = attributes.get

    def text(self, *keys: str) -> str:
        """Return the first non-empty text under these keys, of an array its first text. Quotes of a JSON string are removed."""
        for key in keys:
            for text in _texts(self._get(key)):
                if text:
                    return text
        return ""

    def label(self, key: str) -> str:
        """Return a text, or that of a number, as the rows of Legato's own emitters have it: rows of one response have one service."""
        value = self._get(key)
        return self.text(key) or (number_text(value) if value is not None else "")

    def count(self, *keys: str, most: int = UINT32_MAX) -> int | None:
        """Return the first whole number from 0 to ``most``, which may be sent as a double or as digits in a text."""
        for key in keys:
            number = self.number(key)
            if number is not None and number.is_integer() and 0 <= number <= most:
                return int(number)
        return None

    def number(self, key: str) -> float | None:
        """Return a finite number, which may be sent as a text."""
        value = self._get(key)
        which = value.WhichOneof("value") if value is not None else None
        if value is None or which not in ("int_value", "double_value", "string_value"):
            return None
        try:
            number = float(getattr(value, which))
        except ValueError:
            return None
        return number if math.isfinite(number) else None

    def micros(self, key: str, unit_us: float = 1e6) -> int | None:
        """Return a duration in µs; ``unit_us`` is the emitter's unit. None for a negative one or one of more than 30 years."""
        number = self.number(key)
        return round(number * unit_us) if number is not None and 0 <= number * unit_us < 1e15 else None

    def flag(self, *keys: str) -> bool | None:
        """Return the first boolean under these keys, which may be sent as a text; None where there is none."""
        for key in keys:
            value = self._get(key)
            if value is None:
                continue
            if value.WhichOneof("value") == "bool_value":
                return value.bool_value
            lowered = value.string_value.lower()
            if lowered in ("true", "false"):
                return lowered == "true"
        return None

    def json(self, key: str) -> Any:
        """Return the value of a JSON text of at most 1 MiB with at most some 32,768 values; None where there is none."""
        value = self._get(key)
        text = value.string_value if value is not None else ""
        if not text or len(text) > _JSON_CHARACTERS_MAX or sum(map(text.count, ",[{")) > _JSON_VALUES_MAX:
            return None
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            return None


def _texts(value: AnyValue | None) -> Iterator[str]:
    which = value.WhichOneof("value") if value is not None else None
    if value is None:
        return
    if which == "array_value":
        for item in value.array_value.values:
            yield from _texts(item)
    elif which == "string_value":
        text = value.string_value[:TEXT_CHARACTERS_MAX]
        if text[:1] == "[" or (len(text) > 1 and text[0] == text[-1] == '"'):
            yield _unquoted(text)
        else:
            yield text


def object_of(value: Any) -> dict[str, Any]:
    """Return an object out of JSON; empty for any other value."""
    return value if isinstance(value, dict) else {}


def count_of(value: Any) -> int | None:
    """Return a number of tokens out of JSON; None for any other value."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= UINT32_MAX else None


def plain(text: str) -> str:
    """Return a text out of JSON, cut to 1,024 characters. Single surrogates, which JavaScript makes where it cuts a text, become `?`."""
    return text[:TEXT_CHARACTERS_MAX].encode("utf-8", "replace").decode()


def _unquoted(text: str) -> str:
    """Return the text in a JSON string, or the first text of a list in JSON or in Python's notation; any other text as it is.

    Of an object in a list its finish reason or its type counts. A list without such a text is unknown.
    """
    try:
        inner = json.loads(text)
    except (ValueError, RecursionError):
        if not _LIST.match(text):
            return text
        found = _FIRST_TEXT.match(text)
        return found[2] if found else ""
    if not isinstance(inner, list):
        return plain(inner) if isinstance(inner, str) else text
    inner = inner[0] if inner else ""
    if isinstance(inner, dict):
        inner = inner.get("finish_reason") or inner.get("type")
    return plain(inner) if isinstance(inner, str) else ""


def streamed_of(loose: Loose) -> bool | None:
    """Return whether the response was streamed, by a flag or by the method of a remote call (`ConverseStream`); None where neither says."""
    streamed, method = loose.flag(*_STREAMED), loose.text("rpc.method").rpartition("/")[2]
    if streamed is None and (method in _UNARY or method.startswith("Stream") or method.endswith("Stream")):
        return method not in _UNARY
    return streamed


def foreign_record(span: Span, attributes: Attributes, loose: Loose, family: str) -> StreamRecord:
    """Return the record of a response with what the span says about it, its outcome included; times other than start and end are absent."""
    address = loose.text("server.address")
    record = StreamRecord(
        trace_id=span.trace_id,
        span_id=span.span_id,
        parent_span_id=span.parent_span_id,
        start_ns=span.start_time_unix_nano,
        end_ns=span.end_time_unix_nano,
        otlp_bytes=span.ByteSize(),
        emitter=f"{family}/{attributes.scope_version}" if attributes.scope_version else family,
        vantage=_vantage_of(span, attributes),
        service_name=loose.label("service.name"),
        service_version=loose.label("service.version"),
        provider=provider_name(loose.text(*_PROVIDER)),
        model=loose.text(*_MODEL),
        response_model=loose.text(*_RESPONSE_MODEL),
        response_id=loose.text(*_RESPONSE_ID),
        finish_reason=finish_name(loose.text(*_FINISH)),
        route=loose.text("http.route"),
        conversation_id=loose.text("gen_ai.conversation.id", "session.id"),
        server_address=host_of(address),
        server_port=loose.count("server.port", most=PORT_MAX) or port_of(address),
        input_tokens=loose.count(*_INPUT),
        output_tokens=loose.count(*_OUTPUT),
        error_type=error_type_of(span, attributes.own),
    )
    if record.input_tokens == 0 and not record.output_tokens:
        # A counter that was never set: no request has an empty prompt.
        record.input_tokens = record.output_tokens = None
    if _is_survived(span, record):
        record.error_type = ""
    record.outcome = outcome_of(span, record)
    return record


def _vantage_of(span: Span, attributes: Attributes) -> str:
    if attributes.scope == ENVOY:
        return "gateway"
    return "server" if span.kind == Span.SPAN_KIND_SERVER else "client"


def error_type_of(span: Span, own: Mapping[str, AnyValue]) -> str:
    """Return the error type in a span's own attributes, or the type of the last exception that it recorded; empty without one."""
    loose = Loose(Attributes(own, {}))
    # A status of HTTP may be a number.
    found = loose.text(_ERROR_TYPE) or str(loose.count(_ERROR_TYPE) or "")
    # An exception ends the stream, and thousands of chunks may precede it.
    for event in () if found else reversed(span.events[-_LAST_EVENTS:]):
        if event.name == "exception":
            raised = Loose(Attributes(attribute_map(event.attributes), {}))
            return error_name(raised.text("exception.type"), raised.text("exception.message"))
    return error_name(found, "")


def _is_survived(span: Span, record: StreamRecord) -> bool:
    """Whether the error is an exception that the library recorded and went on after, as before another attempt: the stream has an end."""
    if span.status.code == Status.STATUS_CODE_ERROR or any(each.key == _ERROR_TYPE for each in span.attributes):
        return False
    return record.finish_reason.lower() not in ("", *_NO_END, *_BROKEN)


def outcome_of(span: Span, record: StreamRecord) -> str:
    """Return the outcome as far as the span shows it.

    A library that leaves a loop early often ends its span with status OK, so only a finish reason or a usage proves that the stream reached
    its end. A span with an error of no type, and without a finish reason, shows neither an end nor a provider's error.
    """
    failed = span.status.code == Status.STATUS_CODE_ERROR or (record.error_type and not _is_survived(span, record))
    if not failed:
        finish = record.finish_reason.lower()
        if finish in _BROKEN or _LEFT.search(finish):
            return "upstream_error" if finish in _BROKEN else "client_cancel"
        # Anthropic's first event has a number of output tokens already.
        reached = (finish and finish not in _NO_END) or (record.output_tokens and record.provider != "anthropic")
        return "complete" if reached else UNKNOWN_OUTCOME
    kind, said = record.error_type, said_of(span.status.message)
    if kind in _OF_STATUS:
        return _OF_STATUS[kind]
    if _TIMED_OUT.search(kind) or _TIMED_OUT.search(said):
        return "timeout"
    if _CANCEL_TYPE.search(kind) or (_CANCEL_SAID.search(said) and not _ANSWERED.search(f"{kind}\n{said}")):
        return "client_cancel"
    if record.error_type in ("", _OTHER) and not span.status.message:
        return "complete" if record.finish_reason else UNKNOWN_OUTCOME
    return "upstream_error"


def add_ttft(record: StreamRecord, ttft_us: int | None, *, any_chunk: bool) -> None:
    """Set TTFT, unless it contradicts the span. ``any_chunk``: the first chunk may be a prelude without content.

    A first chunk before the start is flagged `ttft_before_start`, one after the end of the stream `ttft_after_end`. A TTFT that equals the
    duration of a stream of several tokens, or of a complete one of an unknown number, is flagged `ttft_is_duration`. In each case TTFT is
    unknown.
    """
    if ttft_us is None:
        return
    duration_us = (record.end_ns - record.start_ns) // 1000
    if ttft_us < -_EARLY_US:
        record.flags.append(_BEFORE_START)
        return
    ttft_us = max(0, ttft_us)
    if ttft_us > duration_us + _SAME_US:
        record.flags.append("ttft_after_end")
    elif END_UNKNOWN not in record.flags and duration_us - ttft_us <= _SAME_US and _has_several_tokens(record):
        record.flags.append("ttft_is_duration")
    else:
        record.ttft_us = ttft_us
        if any_chunk:
            record.flags.append(ANY_CHUNK)


def _has_several_tokens(record: StreamRecord) -> bool:
    """Whether a stream has more than one token. Few complete ones of an unknown number have one; a stream may be left at its first."""
    return record.outcome == "complete" if record.output_tokens is None else record.output_tokens > 1


def add_chunks(record: StreamRecord, events: ChunkEvents | None) -> None:
    """Set the timeline of a span with an event for each chunk; None leaves the record as it is.

    Where the events do not say what chunks carry, the first event is the first chunk of any kind. Where events were dropped, the time of
    the first chunk is unknown.
    """
    if events is None:
        return
    record.timeline, record.chunks_dropped = events.timeline, min(events.dropped, UINT32_MAX)
    record.kinds_known, record.head_known = events.kinds_known, events.head_known
    record.ttft_us = None
    if not events.kinds_known:
        record.flags.append("kinds_unknown")
        if events.head_known:
            add_ttft(record, events.first_us, any_chunk=True)
    elif events.first_us < -_EARLY_US:
        record.flags.append(_BEFORE_START)
        record.start_known = False
    if not events.head_known:
        record.flags.append("head_unknown")
