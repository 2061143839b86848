"""The registry of emitter families: one module for each family, which converts its spans to records.

A family is a module with one function, ``convert(span, attributes)``. It returns the record of a span of the family, ``Ignored`` for a span
of the family that is no streamed response, and ``None`` for any other span. Legato's own families raise ``AttributeFault`` for an attribute
of the wrong type or with an impossible value; to the others such a value is unknown (``foreign``). The docstring of a module states which
values the family can carry; values that it cannot carry keep the record's defaults. To add a family, write its module, add it to
``FAMILIES``, and describe it in ``legato_ingest.emitters``.
"""

from collections.abc import Callable, Mapping

from opentelemetry.proto.trace.v1.trace_pb2 import Span

from legato_ingest.otlp.attributes import Attributes
from legato_ingest.otlp.emitters import (
    ai_sdk,
    anthropic_sdk,
    engine,
    engine_request,
    langfuse,
    litellm,
    logfire,
    mlflow,
    native,
    openinference,
    openlit,
    openllmetry,
    pydantic_ai,
    semconv,
)
from legato_ingest.otlp.model import EngineFlush, Ignored, SilenceRecord, StreamRecord

__all__ = ["FAMILIES"]

# The families are tried in this order; the first that returns a record, or ignores the span, decides. The last decides on every span.
FAMILIES: Mapping[str, Callable[[Span, Attributes], StreamRecord | SilenceRecord | EngineFlush | Ignored | None]] = {
    "engine": engine.convert,
    "native": native.convert,
    "engine-request": engine_request.convert,
    "anthropic-sdk": anthropic_sdk.convert,
    "ai-sdk": ai_sdk.convert,
    "pydantic-ai": pydantic_ai.convert,
    "logfire": logfire.convert,
    "litellm": litellm.convert,
    "langfuse": langfuse.convert,
    "mlflow": mlflow.convert,
    "openlit": openlit.convert,
    "openinference": openinference.convert,
    "openllmetry": openllmetry.convert,
    "semconv": semconv.convert,
}
