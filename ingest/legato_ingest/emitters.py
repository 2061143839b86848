"""The families of emitters that are not Legato's own, as one table: who they are, what their spans say about a stream, and what is missing.

The converters in ``otlp.emitters``, `legato doctor --emitters`, panels and docs/reference.md read this table. To add a family, add a row
and its module in ``otlp/emitters``. The module imports nothing from the other packages.

``Emitter.name`` begins the column `emitter` of a row, before a slash and the version of the instrumentation scope.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["BY_NAME", "EMITTERS", "IGNORED", "OWN_PREFIX", "STREAMING_UNKNOWN", "Emitter", "Timing"]

# The emitters of Legato's own libraries begin with this.
OWN_PREFIX = "legato-"

Timing = Literal["each chunk", "first chunk", "first content", "duration"]
"""The finest timing that a family sends: an event for each chunk; the first chunk, which may be a prelude without content; the first chunk
with content; or no more than start and end.
"""


@dataclass(frozen=True, slots=True)
class Emitter:
    """One family. ``missing`` is what its rows cannot say, ``mend`` the smallest change that would add it."""

    name: str
    label: str
    timing: Timing
    missing: str
    mend: str


_ADD_LEGATO = (
    "add `legato.instrument()` to the application, with one OTEL_SERVICE_NAME for both: Legato's row has every chunk, and this row steps "
    "back"
)
_NO_GAPS = "gaps, stalls and their causes; how the stream ended, if it names no finish reason"

EMITTERS = (
    Emitter(
        name="openllmetry",
        label="OpenLLMetry, Traceloop",
        timing="each chunk",
        missing="what each chunk carries; the head of streams with more chunks than the limit of span events (128); whether a stream broke "
        "or was left early",
        mend="raise the limit: OTEL_SPAN_EVENT_COUNT_LIMIT=4096",
    ),
    Emitter(
        name="otel-genai",
        label="OpenTelemetry GenAI instrumentations",
        timing="first chunk",
        missing=_NO_GAPS + "; the first chunk may be a prelude",
        mend=_ADD_LEGATO,
    ),
    Emitter(
        name="openinference",
        label="OpenInference, Phoenix",
        timing="first chunk",
        missing=_NO_GAPS
        + "; the first chunk may be a prelude; the duration, where it ends its span before the stream ends (LlamaIndex, Groq); TTFT, at "
        "Envoy AI Gateway, which notes the first chunk at the end",
        mend=_ADD_LEGATO,
    ),
    Emitter(
        name="anthropic-sdk",
        label="Anthropic SDK's own spans",
        timing="first content",
        missing=_NO_GAPS,
        mend=_ADD_LEGATO,
    ),
    Emitter(
        name="openlit",
        label="OpenLIT",
        timing="duration",
        missing=_NO_GAPS
        + "; its time to first token runs from the headers to the first chunk, so it is no TTFT; a stream that broke or was left has "
        "no row",
        mend=_ADD_LEGATO,
    ),
    Emitter(
        name="langfuse",
        label="Langfuse SDK",
        timing="first chunk",
        missing=_NO_GAPS + "; the first chunk may be a prelude; the response id",
        mend=_ADD_LEGATO,
    ),
    Emitter(
        name="litellm",
        label="LiteLLM and its proxy",
        timing="first chunk",
        missing=_NO_GAPS + "; TTFT, before its newer telemetry (LITELLM_OTEL_V2); behind the proxy, whether a client left",
        mend="set LITELLM_OTEL_V2=true for TTFT; `legato.instrument()` adds every chunk",
    ),
    Emitter(
        name="mlflow",
        label="MLflow",
        timing="each chunk",
        missing="the head of streams with more chunks than the limit of span events (128); a stream that was left early sends no span",
        mend="raise the limit: OTEL_SPAN_EVENT_COUNT_LIMIT=4096",
    ),
    Emitter(
        name="logfire",
        label="Logfire",
        timing="duration",
        missing=_NO_GAPS + "; TTFT and the time before the headers: its second span has the duration of the stream alone",
        mend=_ADD_LEGATO,
    ),
    Emitter(
        name="pydantic-ai",
        label="Pydantic AI",
        timing="first content",
        missing=_NO_GAPS,
        mend=_ADD_LEGATO,
    ),
    Emitter(
        name="ai-sdk",
        label="Vercel AI SDK",
        timing="first content",
        missing=_NO_GAPS + "; an aborted stream has no times at all",
        mend="record the stream at its server: `StreamMiddleware`, or an engine's plugin",
    ),
    Emitter(
        name="engine-request",
        label="Request spans of vLLM and SGLang",
        timing="first content",
        missing="gaps, stalls and their causes; whether the response was streamed; vLLM sends no model, and no span of a stream that its "
        "client left",
        mend="install Legato's plugin in the engine: it sends every step",
    ),
    Emitter(
        name="semconv",
        label="Any span by the semantic conventions",
        timing="each chunk",
        missing="without an event a chunk: "
        + _NO_GAPS
        + "; with them: what each chunk carries, and the head of streams with more than 128 chunks",
        mend="add an event named `gen_ai.chunk` for each chunk, with OTEL_SPAN_EVENT_COUNT_LIMIT=4096",
    ),
)
BY_NAME = {each.name: each for each in EMITTERS}

# Why a span is acknowledged and not stored.
STREAMING_UNKNOWN = "streaming unknown"
IGNORED = {
    "no LLM call": "it has no attribute of an LLM request",
    "not streamed": "it is an LLM request, and its emitter says that the response was not streamed",
    STREAMING_UNKNOWN: "it is an LLM request, and nothing in it says that the response was streamed",
    "outer span": "it is a span around the request, such as an agent's or a framework's; the span of the request is another",
    "request of a stream": "it is the request of a streamed response, up to its headers; the stream's end is another span",
    "verdict": "it is a span about a stall, which `legato serve` itself sent to a trace backend",
    "log record": "no emitter is known that keeps a stream's times in logs",
}
