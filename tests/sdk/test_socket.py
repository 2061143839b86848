"""Socket probes and event-loop lag with real clients: data that waited in the receive queue, and data that arrived late."""

from __future__ import annotations

import asyncio
import gc
import socket
import sys
import threading
import time
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from types import SimpleNamespace
from typing import Any

import openai
import pytest
from fastapi import FastAPI, Request
from fastapi.responses import StreamingResponse
from opentelemetry.sdk.trace import ReadableSpan
from starlette.background import BackgroundTask

import legato
from helpers.builders.completions import completions_server, delta, frame
from legato._loop import running_loop_lag
from legato._socket import socket_probe
from legato_ingest.timeline.codec import decode_columns, read_head

Spans = Callable[[], list[ReadableSpan]]
QUEUED, IDLE = 10, 12
# Of a stream in step: a permit for each word after the first, and whether the server has sent everything.
asked, is_sent = threading.Semaphore(0), threading.Event()
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="socket probes need Linux")


async def words(count: int, pause_s: float, in_step: bool) -> AsyncIterator[str]:
    """Yield the SSE frames of ``count`` words and an end, with ``pause_s`` seconds between them. Each pause of a stream ``in_step`` begins
    with a permit of the reader's, so that no two words arrive together, however late the reader is."""
    for _ in range(count):
        yield frame(delta({"content": "word"}))
        if in_step:
            assert await asyncio.to_thread(asked.acquire, timeout=60)
        await asyncio.sleep(pause_s)
    yield frame(delta({}, "stop"))
    yield "data: [DONE]\n\n"


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """The base URL of a server that reads the number of words and the ms between them from the model's name, ``4x20`` or ``4x20x``."""
    app = FastAPI()

    @app.post("/v1/chat/completions")
    async def completions(request: Request) -> StreamingResponse:
        count, pause_ms, *in_step = (await request.json())["model"].split("x")
        frames = words(int(count), int(pause_ms) / 1000, bool(in_step))
        # After the last byte: each one that arrives ends the idle time of the socket.
        return StreamingResponse(frames, media_type="text/event-stream", background=BackgroundTask(is_sent.set))

    legato.instrument_openai()
    with completions_server(app) as base:
        yield base
    legato.uninstrument_openai()


def probed(span: ReadableSpan) -> dict[int, tuple[int, int, int]]:
    """Return, by number, for each chunk with a probe: µs since the chunk before, bytes in the receive queue, ms since data last arrived."""
    blob = (span.attributes or {})["legato.stream.timeline"]
    assert isinstance(blob, bytes)
    _, columns, bad = decode_columns([blob], [read_head(blob)], frozenset((1, QUEUED, IDLE)))
    assert not bad
    rows = zip(*(columns[name].tolist() for name in (1, QUEUED, IDLE)), strict=True)
    return {number: (dt, queued - 1, idle - 1) for number, (dt, queued, idle) in enumerate(rows) if queued and idle}


def test_data_waits_in_the_socket_while_the_event_loop_is_blocked(url: str, spans: Spans) -> None:
    """The last word arrives while the loop is blocked, 0.5 s before the read, and the probe shows the wait."""
    is_sent.clear()

    def block() -> None:
        asked.release(2)
        assert is_sent.wait(60)
        time.sleep(0.5)

    async def run() -> None:
        async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0, timeout=60) as client:
            stream = await client.chat.completions.create(model="2x0x", messages=[], stream=True)
            number = 0
            async for _ in stream:
                number += 1
                if number == 1:
                    asyncio.get_running_loop().call_soon(block)

    asyncio.run(run())
    dt_us, queued, idle_ms = probed(spans()[0])[1]
    # The kernel's clock ticks every few ms.
    assert dt_us >= 480_000 and 480 <= idle_ms <= dt_us / 1000 + 10 and queued > 100


def test_event_loop_lag_counts_as_a_hold(url: str, spans: Spans, columns: Callable[[ReadableSpan], dict[str, Any]]) -> None:
    """The loop is blocked for 0.5 s while the stream continues: the chunk before the gap has that hold, and no other chunk does."""

    read_at_s = list[float]()

    async def run() -> None:
        async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0, timeout=60) as client:
            async for _ in await client.chat.completions.create(model="40x20", messages=[], stream=True):
                read_at_s.append(time.monotonic())
                if len(read_at_s) == 5:
                    asyncio.get_running_loop().call_later(0.002, time.sleep, 0.5)

    asyncio.run(run())
    (span,) = spans()
    holds_ms = [0.064 * hold for hold in columns(span)["holds"]]
    times = columns(span)["times_us"]
    at = holds_ms.index(max(holds_ms))
    gap_ms = (times[at + 1] - times[at]) / 1000
    assert 450 < max(holds_ms) <= gap_ms and gap_ms > 490
    # A busy machine holds the application for longer, but no time between the first chunk and the last one counts twice.
    assert sum(holds_ms) < 1_000 * (read_at_s[-1] - read_at_s[0]) + 100


def test_a_blocking_loop_body_counts_once(url: str, spans: Spans, columns: Callable[[ReadableSpan], dict[str, Any]]) -> None:
    """An application that blocks the loop between two chunks causes a hold and the same lag; the time is recorded once."""

    read_at_s = list[float]()

    async def run() -> None:
        async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0, timeout=60) as client:
            async for _ in await client.chat.completions.create(model="20x20", messages=[], stream=True):
                read_at_s.append(time.monotonic())
                if len(read_at_s) == 5:
                    time.sleep(0.4)

    asyncio.run(run())
    holds_ms = [0.064 * hold for hold in columns(spans()[0])["holds"]]
    # A busy machine holds the application for longer, but no time between the first chunk and the last one counts twice.
    assert 390 <= sum(holds_ms) < 1_000 * (read_at_s[-1] - read_at_s[0]) + 100


def test_a_read_right_after_a_block_finds_the_lag(spans: Spans, columns: Callable[[ReadableSpan], dict[str, Any]]) -> None:
    """A read may run before the timer that the block has made late: the lag is recorded, and only once."""

    async def source() -> AsyncIterator[str]:
        for number in range(8):
            await asyncio.sleep(0.03)
            if number == 4:
                time.sleep(0.4)
            yield "word"

    async def run() -> None:
        async for _ in legato.wrap(source(), model="m"):
            pass

    began_s = time.monotonic()
    asyncio.run(run())
    # A busy machine adds lag to both.
    lag_ms = 1_000 * (time.monotonic() - began_s - 8 * 0.03)
    holds_ms = [0.064 * hold for hold in columns(spans()[0])["holds"]]
    assert 370 < holds_ms[3] <= sum(holds_ms) < lag_ms + 100


def test_a_stream_that_is_read_on_many_loops_has_no_lag(spans: Spans, columns: Callable[[ReadableSpan], dict[str, Any]]) -> None:
    """A synchronous bridge runs a loop for each item: the timer of a loop that has ended is not overdue."""

    class Words:
        # Not a generator, which the end of its loop would close.
        left = 4

        def __aiter__(self) -> Words:
            return self

        async def __anext__(self) -> str:
            if not self.left:
                raise StopAsyncIteration
            self.left -= 1
            await asyncio.sleep(0.2)
            return "word"

    async def following(items: AsyncIterator[str]) -> str | None:
        return await anext(items, None)

    items = aiter(legato.wrap(Words(), model="m"))
    began_s = time.monotonic()
    while asyncio.run(following(items)) is not None:
        pass
    # A busy machine holds the application.
    held_ms = 1_000 * (time.monotonic() - began_s - 4 * 0.2)
    found = columns(spans()[0])
    assert len(found["sizes"]) == 4 and sum(found["holds"] or [0]) * 0.064 < held_ms + 100


def test_the_timer_stops_with_the_last_stream(url: str) -> None:
    """No timer is left on the loop after streams were read to their end or closed, and the loop can be garbage-collected."""

    async def run() -> weakref.ref[asyncio.AbstractEventLoop]:
        async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0, timeout=60) as client:

            async def read(leave: bool) -> None:
                stream = await client.chat.completions.create(model="10x20", messages=[], stream=True)
                async for _ in stream:
                    if leave:
                        await stream.close()
                        return

            await asyncio.gather(read(False), read(True))
        await asyncio.sleep(0.1)
        found = running_loop_lag()
        assert found is not None and not found._streams and found._timer is None
        return weakref.ref(asyncio.get_running_loop())

    loop = asyncio.run(run())
    gc.collect()
    assert loop() is None
    assert running_loop_lag() is None


def test_data_of_a_slow_server_does_not_wait_in_the_socket(url: str, spans: Spans) -> None:
    """With a slow server each read follows the arrival of its data immediately, and the probe shows that."""
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=60) as client:
        for number, _ in enumerate(client.chat.completions.create(model="4x150x", messages=[], stream=True)):
            if number < 4:
                asked.release()
    probes = probed(spans()[0])
    # The first probe may be that of the first chunk; those of the other words and of the finish reason follow pauses.
    found = [probes[number] for number in range(1, 5)]
    # A busy machine reads some of them late, which never happens in the pause.
    assert all(dt > 149_000 and queued > 0 and idle < (dt - 149_000) / 1000 + 10 for dt, queued, idle in found)
    assert any(idle < 60 for _, _, idle in found)


def test_a_steady_stream_is_not_probed(url: str, spans: Spans) -> None:
    """Without late reads there are no probes; a few of the 30 reads are late on a busy machine."""
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=60) as client:
        for _ in client.chat.completions.create(model="30x5", messages=[], stream=True):
            pass
    assert len(probed(spans()[0])) <= 10


class _Broken:
    family = socket.AF_INET

    def getsockopt(self, *_: Any) -> bytes:
        """Raise as an event loop's socket wrapper does."""
        raise TypeError("not supported")


@pytest.mark.parametrize(
    ("connection", "version"),
    [(None, "HTTP/1.1"), (socket.socket(socket.AF_UNIX), "HTTP/1.1"), (_Broken(), "HTTP/2"), (object(), "HTTP/1.1")],
)
def test_connections_without_a_probe(connection: Any, version: str) -> None:
    """There is no probe without a socket, without TCP, and over HTTP/2, where a connection carries several streams."""
    network = SimpleNamespace(get_extra_info=lambda name: connection)
    assert socket_probe(SimpleNamespace(http_version=version, extensions={"network_stream": network})) is None
    assert socket_probe(SimpleNamespace(http_version=version)) is None


def test_a_failing_probe_does_not_raise() -> None:
    """A closed socket, or an object that only resembles one, gives ``None``."""
    closed = socket.socket()
    closed.close()
    for connection in (closed, _Broken()):
        network = SimpleNamespace(get_extra_info=lambda name, connection=connection: connection)
        probe = socket_probe(SimpleNamespace(http_version="HTTP/1.1", extensions={"network_stream": network}))
        assert probe is not None and probe() is None
