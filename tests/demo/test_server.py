"""The replaying server's timing and protocol, tested by plain clients without Legato at either end."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import statistics
import time
from collections.abc import Iterator

import httpx
import pytest

from demo.plan import Plan
from demo.recording import Stream
from helpers.servers.ports import free_port

PLAN = Plan(("kv",), 1.0, 4.0, "ab12")


def _serve(port: int) -> None:
    from demo.server import create_app, serve

    serve(create_app(PLAN), port)


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """Start a demo server without the SDK's middleware and return its port."""
    chosen = free_port()
    process = multiprocessing.get_context("spawn").Process(target=_serve, args=(chosen,))
    process.start()
    try:
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            try:
                httpx.get(f"http://127.0.0.1:{chosen}/healthz")
                break
            except httpx.TransportError:
                time.sleep(0.05)
        yield chosen
    finally:
        process.terminate()
        process.join(10)


async def _times_of_content(port: int, stream: Stream) -> list[float]:
    await asyncio.sleep(stream.start_us / 1e6)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    body = json.dumps({"stream": True, "stream_options": {"include_usage": True}}).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nX-Request-Id: {stream.key}\r\n"
    writer.write(f"{head}Connection: close\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
    times: list[float] = []
    while data := await reader.read(65_536):
        times += [time.monotonic()] * data.count(b"data: {")
    writer.close()
    await writer.wait_closed()
    # Between the role frame and the usage frame.
    return times[1:-1]


def test_gaps_are_the_recorded_ones(port: int) -> None:
    """With 22 concurrent streams, half of all gaps are within 2 ms of the recorded ones, and 99 % within 20 ms."""
    (recording,) = PLAN.recordings()

    async def read_all() -> list[list[float]]:
        return await asyncio.gather(*(_times_of_content(port, stream) for stream in recording.streams))

    differences_ms = []
    for stream, times in zip(recording.streams, asyncio.run(read_all()), strict=True):
        assert len(times) == len(stream.content)
        gaps_ms = [(later - earlier) * 1e3 for earlier, later in zip(times, times[1:], strict=False)]
        differences_ms += [abs(gap - was / 1e3) for gap, was in zip(gaps_ms, stream.gaps_us(), strict=True)]
    assert len(differences_ms) > 1000
    assert statistics.median(differences_ms) <= 2
    assert statistics.quantiles(differences_ms, n=100)[98] <= 20


def test_a_request_that_cannot_be_replayed_is_rejected(port: int) -> None:
    """The response to an unknown stream, an invalid body or a request without stream=true says what to send."""
    url = f"http://127.0.0.1:{port}/v1/chat/completions"
    unknown = httpx.post(url, json={"stream": True}, headers={"X-Request-Id": "unknown"})
    assert unknown.status_code == 404 and "X-Request-Id, for example" in unknown.text
    broken = httpx.post(url, content=b"stream", headers={"X-Request-Id": "unknown"})
    assert broken.status_code == 400 and "not JSON" in broken.text
    whole = httpx.post(url, json={}, headers={"X-Request-Id": "unknown"})
    assert whole.status_code == 400 and "stream=true" in whole.text


def test_a_request_without_a_stream_id_receives_the_next_stream(port: int) -> None:
    """Clients other than the demo's need not send X-Request-Id."""
    with httpx.stream("POST", f"http://127.0.0.1:{port}/v1/chat/completions", json={"stream": True}) as reply:
        assert reply.headers["X-Request-Id"].startswith("kv-")
        assert next(reply.iter_lines()).startswith('data: {"id":"chatcmpl-ab12-kv-')


def test_usage_is_sent_only_on_request(port: int) -> None:
    """Without stream_options.include_usage there is no usage frame, as in OpenAI's API."""
    (recording,) = PLAN.recordings()
    stream = min(recording.streams, key=lambda stream: stream.content[-1][0])
    reply = httpx.post(
        f"http://127.0.0.1:{port}/v1/chat/completions", json={"stream": True}, headers={"X-Request-Id": stream.key}, timeout=30
    )
    assert reply.text.endswith("data: [DONE]\n\n")
    assert '"usage"' not in reply.text
