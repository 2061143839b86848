"""Fixtures of the SDK's tests: one tracer provider (OpenTelemetry allows one per process); its spans are cleared for each test."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import legato
from legato import _unparsed
from legato_ingest.timeline.codec import decode, read_head

Spans = Callable[[], list[ReadableSpan]]


@pytest.fixture(scope="session")
def exporter() -> InMemorySpanExporter:
    """Collects the spans of the process."""
    provider = TracerProvider()
    kept = InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(kept))
    trace.set_tracer_provider(provider)
    return kept


@pytest.fixture
def spans(exporter: InMemorySpanExporter) -> Iterator[Spans]:
    """Return a function that waits for the worker and returns this test's spans, without reports of silent streams of other tests."""
    legato.flush(60)
    exporter.clear()

    def finished() -> list[ReadableSpan]:
        assert legato.flush(60)
        # Servers under test may create spans too.
        finished_spans = exporter.get_finished_spans()
        own = [span for span in finished_spans if span.instrumentation_scope and span.instrumentation_scope.name == "legato"]
        return [span for span in own if span.name != "legato.stream.silence"]

    yield finished
    legato.flush(60)
    exporter.clear()


@pytest.fixture
def columns() -> Callable[[ReadableSpan], dict[str, Any]]:
    """Return a function that decodes a span's timeline: µs from the start, sizes, kinds, tokens, holds in units of 64 µs."""

    def unpack(span: ReadableSpan) -> dict[str, Any]:
        blob = (span.attributes or {})["legato.stream.timeline"]
        assert isinstance(blob, bytes)
        timelines, bad = decode([blob], [read_head(blob)])
        assert not bad
        return {
            "times_us": timelines.dt_us.cumsum().tolist(),
            "sizes": timelines.sizes.tolist(),
            "kinds": timelines.kinds.tolist(),
            "tokens": timelines.tokens.tolist() if timelines.has_tokens[0] else None,
            "holds": timelines.holds.tolist() if timelines.has_holds[0] else None,
        }

    return unpack


@pytest.fixture
def stock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], int]]:
    """Return a function that returns the number of free pages of a stock that only this test uses. In the end all must be free."""
    monkeypatch.setattr(_unparsed, "_stock", None)
    _unparsed._refill()
    yield lambda: len(_unparsed._stock)
    gc.collect()
    assert len(_unparsed._stock) == _unparsed.UNPARSED_BYTES_MAX // _unparsed.PAGE_BYTES
