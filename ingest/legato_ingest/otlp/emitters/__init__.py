"""The registry of emitter families: one module for each family, which converts its spans to records.

A family is a module with one function, ``convert(span, attributes)``. It returns the record of a span of the family, returns ``None`` for
any other span, and raises ``AttributeFault`` for an attribute of the wrong type or with an impossible value. The docstring of the module
states which values the family can carry; values that it cannot carry keep the record's defaults. To add a family, write its module and add
it to ``FAMILIES``. What all families with GenAI attributes share is in ``common``.
"""

from collections.abc import Callable, Mapping

from opentelemetry.proto.trace.v1.trace_pb2 import Span

from legato_ingest.otlp.attributes import Attributes
from legato_ingest.otlp.emitters import engine, native, semconv
from legato_ingest.otlp.model import EngineFlush, SilenceRecord, StreamRecord

__all__ = ["FAMILIES"]

# The families are tried in this order; the first that returns a record decides.
FAMILIES: Mapping[str, Callable[[Span, Attributes], StreamRecord | SilenceRecord | EngineFlush | None]] = {
    "engine": engine.convert,
    "native": native.convert,
    "semconv": semconv.convert,
}
