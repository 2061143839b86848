"""Ends of a server's streams, by message: work after the response, clients that have gone, and answers that are replaced."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan

from legato import asgi, stats, wsgi

Spans = Callable[[], list[ReadableSpan]]
START = {"type": "http.response.start", "headers": [(b"content-type", b"text/event-stream")]}
SCOPE = {"type": "http", "method": "POST", "path": "/x", "headers": []}


def outcomes(spans: list[ReadableSpan]) -> list[Any]:
    """Return the streams' outcomes."""
    return [(span.attributes or {})["legato.stream.outcome"] for span in spans]


def body(text: str, *, more: bool = False) -> dict[str, Any]:
    """Return a message with a part of the body."""
    return {"type": "http.response.body", "body": f"data: {text}\n\n".encode(), "more_body": more}


def test_work_after_the_response_is_no_part_of_the_stream(spans: Spans) -> None:
    """The stream has ended while the work runs, and its fault is none of the stream's."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        before = stats()["live"]
        await send(START)
        await send(body("word"))
        assert stats()["live"] == before
        raise ValueError("a fault after the response")

    async def send(message: Any) -> None:
        assert message

    with pytest.raises(ValueError, match="after"):
        asyncio.run(asgi.StreamMiddleware(app)(SCOPE, None, send))  # type: ignore[arg-type]
    assert outcomes(spans()) == ["complete"]


@pytest.mark.parametrize("last", [True, False])
def test_a_send_to_a_client_that_has_gone_is_a_cancel(spans: Spans, last: bool) -> None:
    """The specification of ASGI lets ``send`` raise an OSError."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send(START)
        await send(body("word", more=True))
        await send(body("lost", more=not last))

    async def send(message: Any) -> None:
        if b"lost" in message.get("body", b""):
            raise ConnectionResetError

    with pytest.raises(ConnectionResetError):
        asyncio.run(asgi.StreamMiddleware(app)(SCOPE, None, send))  # type: ignore[arg-type]
    assert outcomes(spans()) == ["client_cancel"]


def test_an_answer_that_is_replaced_by_an_error_is_one_failed_stream(spans: Spans) -> None:
    """WSGI allows a second start with the exception, as long as nothing was sent."""

    def app(environ: Any, start_response: Any) -> Iterator[bytes]:
        start_response("200 OK", [("Content-Type", "text/event-stream")])
        error = ValueError("a fault")
        start_response("500 Error", [("Content-Type", "text/event-stream")], (ValueError, error, None))
        yield b"sorry"

    environ = {"REQUEST_METHOD": "POST", "PATH_INFO": "/"}
    assert list(wsgi.StreamMiddleware(app)(environ, lambda *_: None)) == [b"sorry"]
    (span,) = spans()
    assert (span.attributes or {})["error.type"] == "builtins.ValueError"
