"""The demo's replaying server as a process without Legato's SDK, and plain clients that record when its frames arrive."""

from __future__ import annotations

import asyncio
import contextlib
import json
import multiprocessing
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import httpx

from demo.plan import Plan
from demo.recording import Stream
from helpers.servers.ports import free_port

__all__ = ["Arrivals", "read_recording", "read_streams", "replay_server"]

_PATIENCE_S = 120


def _serve(plan: Plan, port: int) -> None:
    from demo.server import create_app, serve

    serve(create_app(plan), port)


@contextlib.contextmanager
def replay_server(plan: Plan) -> Iterator[int]:
    """Run the server of a plan without the SDK's middleware and yield its port."""
    port = free_port()
    process = multiprocessing.get_context("spawn").Process(target=_serve, args=(plan, port))
    process.start()
    try:
        _await_healthy(f"http://127.0.0.1:{port}/healthz")
        yield port
    finally:
        process.terminate()
        process.join(_PATIENCE_S)


def _await_healthy(url: str) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while time.monotonic() < deadline:
        with contextlib.suppress(httpx.TransportError):
            if httpx.get(url).status_code == 200:
                return
        time.sleep(0.05)
    raise AssertionError(f"{url} did not answer within {_PATIENCE_S} s")


@dataclass(frozen=True, slots=True)
class Arrivals:
    """One stream as a client received it: the data frames, and when each arrived (s after the request was sent)."""

    frames: list[bytes]
    times_s: list[float]


def read_streams(port: int, streams: Sequence[Stream]) -> list[Arrivals]:
    """Request all streams concurrently, each at its recorded time, and read them to their ends."""

    async def read_all() -> list[Arrivals]:
        return await asyncio.gather(*(_read(port, stream) for stream in streams))

    return asyncio.run(read_all())


async def _read(port: int, stream: Stream) -> Arrivals:
    await asyncio.sleep(stream.start_us / 1e6)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    body = json.dumps({"stream": True, "stream_options": {"include_usage": True}}).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nX-Request-Id: {stream.key}\r\n"
    sent_at = time.monotonic()
    writer.write(f"{head}Connection: close\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
    received, times = b"", list[float]()
    while data := await reader.read(65_536):
        times += [time.monotonic() - sent_at] * data.count(b"data: {")
        received += data
    writer.close()
    await writer.wait_closed()
    frames = [line for line in received.splitlines() if line.startswith(b"data: {")]
    return Arrivals(frames, times)


def read_recording(name: str, seconds: float) -> list[tuple[Stream, Arrivals]]:
    """Replay the first seconds of a recording and return each of its streams with what a client received."""
    plan = Plan((name,), 1.0, seconds, "ab12")
    (recording,) = plan.recordings()
    with replay_server(plan) as port:
        return list(zip(recording.streams, read_streams(port, recording.streams), strict=True))
