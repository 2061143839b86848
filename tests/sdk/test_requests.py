"""`instrument_requests` with a real client and a real server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import requests
from opentelemetry.sdk.trace import ReadableSpan

import legato
from helpers.builders.formats import WORDS
from helpers.servers.formats import formats_app
from helpers.servers.serving import served

Spans = Callable[[], list[ReadableSpan]]
Columns = Callable[[ReadableSpan], dict[str, Any]]
CONTENT = sum(len(word.encode()) for word in WORDS)
seen: list[dict[str, str]] = []


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A server of every format, with the instrumentation installed."""
    legato.instrument_requests()
    legato.instrument_requests()
    with served(formats_app(None, seen)) as base:
        yield base
    legato.uninstrument_requests()


def ask(base: str, path: str, **more: Any) -> requests.Response:
    """Ask for a stream."""
    return requests.post(f"{base}/{path}", json={"model": "asked", "stream": True}, stream=True, timeout=(10, 1.5), **more)


def of(spans: list[ReadableSpan]) -> dict[str, Any]:
    """Return the attributes of the only span."""
    (span,) = spans
    return dict(span.attributes or {})


@pytest.mark.parametrize("path", ["anthropic", "openai-chat?gzip", "ollama", "ai-sdk-data"])
def test_streams(url: str, spans: Spans, columns: Columns, path: str) -> None:
    """Lines, compressed or not; the trace context; and one row if the lines are wrapped, too."""
    lines = list(legato.wrap(ask(url, path).iter_lines(chunk_size=1)))
    (span,) = spans()
    found = of([span])
    assert len(lines) >= len(WORDS) and sum(columns(span)["sizes"]) == CONTENT
    assert (found["legato.stream.outcome"], found["gen_ai.request.model"], found["legato.stream.transport"]) == (
        "complete",
        "asked",
        "http/1.1",
    )
    assert span.context is not None and f"{span.context.span_id:016x}" in seen[-1]["traceparent"]


@pytest.mark.parametrize(
    ("path", "outcome", "error"),
    [
        ("anthropic?cut", "upstream_error", "stream_truncated"),
        ("anthropic?break", "upstream_error", "urllib3.exceptions.ProtocolError"),
        ("anthropic?pause=4", "timeout", "urllib3.exceptions.ReadTimeoutError"),
        ("anthropic?status=500", "upstream_error", "http_500"),
    ],
)
def test_failures(url: str, spans: Spans, path: str, outcome: str, error: str) -> None:
    """The error's type is that of the layer that noticed it."""
    try:
        list(ask(url, path).iter_content(None))
    except requests.RequestException:
        assert "http" not in error
    assert (of(spans())["legato.stream.outcome"], of(spans())["error.type"]) == (outcome, error)


def test_leaving_and_no_stream(url: str, spans: Spans) -> None:
    """Closing early is a cancel; a response that is not streamed has no row, nor has any without the instrumentation."""
    with ask(url, "anthropic?pause=1") as response:
        next(response.iter_content(None))
    requests.post(f"{url}/anthropic", timeout=60)
    assert ask(url, "anthropic", hooks={"response": lambda response, **_: response.content and None}).content, "read by a hook"
    legato.uninstrument_requests()
    list(ask(url, "anthropic").iter_content(None))
    legato.instrument_requests()
    assert of(spans())["legato.stream.outcome"] == "client_cancel"
