"""The application's baggage stays in the application: a recorded request carries the trace context of its stream and nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import aiohttp
import httpx
import openai
import pytest
import requests
from opentelemetry import baggage
from opentelemetry.context import attach, detach
from opentelemetry.sdk.trace import ReadableSpan

import legato
from helpers.servers.formats import formats_app
from helpers.servers.serving import served

Spans = Callable[[], list[ReadableSpan]]
CHAT: dict[str, Any] = {"model": "asked", "messages": [], "stream": True}
seen: list[dict[str, str]] = []


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A server of chat completions, with all instrumentations installed."""
    legato.instrument()
    with served(formats_app({"/v1/chat/completions": "openai-chat"}, seen)) as base:
        yield f"{base}/v1"
    legato.uninstrument()


def with_httpx(url: str) -> None:
    """A request by hand."""
    with httpx.stream("POST", f"{url}/chat/completions", json=CHAT, timeout=60) as response:
        response.read()


def with_aiohttp(url: str) -> None:
    """A request in an event loop."""

    async def run() -> None:
        async with aiohttp.ClientSession() as session, session.post(f"{url}/chat/completions", json=CHAT) as response:
            await response.read()

    asyncio.run(run())


def with_requests(url: str) -> None:
    """A request of a session."""
    assert requests.post(f"{url}/chat/completions", json=CHAT, stream=True, timeout=60).content


def with_openai(url: str) -> None:
    """A stream of the library."""
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=60) as client:
        list(client.chat.completions.create(**CHAT))


@pytest.mark.parametrize("ask", [with_httpx, with_aiohttp, with_requests, with_openai])
def test_baggage_is_not_sent(url: str, spans: Spans, ask: Callable[[str], None]) -> None:
    """OpenTelemetry's default propagators would add it to the headers, for each provider to read."""
    seen.clear()
    token = attach(baggage.set_baggage("user.email", "alice@example.com"))
    try:
        ask(url)
    finally:
        detach(token)
    (span,), (headers,) = spans(), seen
    assert span.context is not None and f"{span.context.span_id:016x}" in headers["traceparent"]
    assert "baggage" not in headers and "alice" not in str(headers)
