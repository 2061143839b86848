"""The lines of docs/reference.md for gRPC and WebSockets, run against real servers with the real libraries."""

from __future__ import annotations

import asyncio
import re
import textwrap
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Thread
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
import websockets.asyncio.client
import websockets.sync.client
import websockets.sync.server
from opentelemetry.sdk.trace import ReadableSpan

import legato
from helpers.repo.repository import ROOT

Spans = Callable[[], list[ReadableSpan]]
SECTION = re.search(r"^### gRPC and WebSockets$(.*?)^### ", (ROOT / "docs" / "reference.md").read_text("utf-8"), re.MULTILINE | re.DOTALL)
GRPC, SOCKET, OPEN_SOCKET = re.findall(r"```python\n(.*?)```", SECTION.group(1) if SECTION else "", re.DOTALL)
WORDS = ["one ", "two ", "drei "]
# Both servers wait so long before the first word.
FIRST_S = 0.1


def run(block: str, names: dict[str, Any]) -> list[Any]:
    """Run a block of the page, also one with `await`. Return what it handled."""
    handled: list[Any] = []
    names |= {"legato": legato, "time": time, "handle": handled.append}
    exec("async def block():\n" + textwrap.indent(block, "    "), names)
    asyncio.run(names["block"]())
    return handled


def text_handler(behaviour: str) -> Callable[[bytes, grpc.ServicerContext], Iterator[bytes]]:
    """Return a method that streams the words, and then ends, fails or hangs."""

    def stream(_: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        time.sleep(FIRST_S)
        yield from (word.encode() for word in WORDS)
        if behaviour == "fails":
            context.abort(grpc.StatusCode.UNAVAILABLE, "gone")
        while behaviour == "hangs" and context.is_active():
            time.sleep(0.01)

    return stream


@pytest.fixture(scope="module")
def target() -> Iterator[str]:
    """A server with one method for each behaviour."""
    server = grpc.server(ThreadPoolExecutor(2))
    methods: dict[str, Any] = {name: grpc.unary_stream_rpc_method_handler(text_handler(name)) for name in ("ends", "fails", "hangs")}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("Text", methods),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}"
    server.stop(0).wait()


def stub_of(channel: Any, behaviour: str, timeout_s: float | None = None) -> Any:
    """Return a stub with the method as `Stream`, and replies with the field `text`."""
    method = channel.unary_stream(f"/Text/{behaviour}", response_deserializer=lambda data: SimpleNamespace(text=data.decode()))
    return SimpleNamespace(Stream=lambda request: method(request, timeout=timeout_s))


def check(span: ReadableSpan, transport: str, outcome: str = "complete") -> None:
    """Check the words, the transport, the end, and that TTFT runs from before the request."""
    found: dict[str, Any] = dict(span.attributes or {})
    assert (found["legato.stream.transport"], found["legato.stream.outcome"]) == (transport, outcome), found
    assert found["legato.stream.chunks"] == len(WORDS) and found["gen_ai.server.ttft"] >= FIRST_S


@pytest.mark.parametrize(
    ("behaviour", "timeout_s", "outcome", "error"),
    [
        ("ends", None, "complete", None),
        ("fails", None, "upstream_error", "grpc.UNAVAILABLE"),
        ("hangs", 2.0, "timeout", "grpc.DEADLINE_EXCEEDED"),
    ],
)
@pytest.mark.parametrize("is_aio", [False, True], ids=["grpc", "grpc.aio"])
def test_responses_of_grpc(
    spans: Spans, target: str, is_aio: bool, behaviour: str, timeout_s: float | None, outcome: str, error: str | None
) -> None:
    """Each message is a chunk; the status is the outcome."""
    # `grpc.aio` makes its channels in the loop that uses the channel.
    block = GRPC.replace("for reply", "async for reply") if is_aio else GRPC
    names: dict[str, Any] = {"request": b"", "grpc": grpc, "stub_of": stub_of, "target": target}
    module = "grpc.aio" if is_aio else "grpc"
    opened = f"{'async ' if is_aio else ''}with {module}.insecure_channel(target) as channel:\n"
    body = f"stub = stub_of(channel, {behaviour!r}, {timeout_s})\n{block}"
    if outcome == "complete":
        assert [reply.text for reply in run(opened + textwrap.indent(body, "    "), names)] == WORDS
    else:
        with pytest.raises(grpc.RpcError):
            run(opened + textwrap.indent(body, "    "), names)
    (span,) = spans()
    check(span, "http/2", outcome)
    assert (span.attributes or {}).get("error.type") == error


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A WebSocket server: it answers each message with the words, and closes after a prompt that says so."""

    def answer(connection: websockets.sync.server.ServerConnection) -> None:
        for prompt in connection:
            time.sleep(FIRST_S)
            for word in WORDS:
                connection.send(word)
            if prompt == "last":
                return

    with websockets.sync.server.serve(answer, "127.0.0.1", 0) as server:
        thread = Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"ws://127.0.0.1:{server.socket.getsockname()[1]}"
        server.shutdown()
        thread.join(10)


def test_a_websocket_that_closes(spans: Spans, url: str) -> None:
    """The end of the connection is that of the stream."""
    with websockets.sync.client.connect(url) as connection:
        assert run(SOCKET, {"connection": connection, "prompt": "last"}) == WORDS
    (span,) = spans()
    check(span, "websocket")


def test_a_websocket_that_stays_open(spans: Spans, url: str) -> None:
    """Two responses over one connection are two streams, both complete."""
    twice = textwrap.indent(OPEN_SOCKET * 2, "    ")
    block = f"async with connect({url!r}) as connection:\n{twice}"
    names = {"connect": websockets.asyncio.client.connect, "prompt": "more", "is_last": lambda message: message == WORDS[-1]}
    assert run(block, names) == WORDS * 2
    first, second = spans()
    check(first, "websocket")
    check(second, "websocket")
