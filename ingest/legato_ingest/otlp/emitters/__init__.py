"""Adapters: one file a family of emitters, each from its spans to ``StreamFacts``.

One idea: the families are tried in this order and the first that knows a span takes it. An adapter says in its docstring what its
family can and cannot know; what it cannot know it leaves out.
"""

from collections.abc import Callable

from opentelemetry.proto.trace.v1.trace_pb2 import Span

from legato_ingest.otlp.attributes import Attributes
from legato_ingest.otlp.emitters import native, semconv
from legato_ingest.otlp.model import StreamFacts

__all__ = ["FAMILIES"]

FAMILIES: dict[str, Callable[[Span, Attributes], StreamFacts | None]] = {
    "native": native.adapt,
    "semconv": semconv.adapt,
}
