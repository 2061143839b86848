"""A server for `bench/peers.py`: OpenAI chat completions on an absolute schedule, with the time of each send in the content.

The request's model is the plan: `bench:CHUNKS:GAP_MS` or `bench:CHUNKS:GAP_MS:STALL_MS`, where the stall is in the middle of the stream.
Streams of one connection burst are staggered, so that their chunks are spread evenly over the gap. The content of a chunk is the monotonic
time in ns directly before it is handed to the socket; monotonic clocks of one machine are the same. It answers nothing else.

    python bench/peer_runs/server.py      # prints its port
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import json
import socket
import time

FIRST_MS = 100.0
PHASES = 20
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\nconnection: keep-alive\r\n\r\n"


def frame(response_id: str, model: str, delta: str, finish: str = "null", usage: str = "null") -> bytes:
    """Return one event as a chunk of the transfer encoding."""
    event = (
        f'data: {{"id":"{response_id}","object":"chat.completion.chunk","created":1763700000,"model":"{model}","choices":[{{"index":0,'
        f'"delta":{delta},"logprobs":null,"finish_reason":{finish}}}],"usage":{usage}}}\n\n'
    ).encode()
    return b"%x\r\n%s\r\n" % (len(event), event)


class Schedule:
    """Sends every due chunk of every stream, in the order of their times."""

    def __init__(self) -> None:
        self._due: list[tuple[int, int, Stream]] = []
        self._order = itertools.count()
        self._changed = asyncio.Event()

    def add(self, at_ns: int, stream: Stream) -> None:
        """Call ``stream.send()`` at this monotonic time."""
        heapq.heappush(self._due, (at_ns, next(self._order), stream))
        self._changed.set()

    async def run(self) -> None:
        """Send for ever."""
        while True:
            self._changed.clear()
            wait_s = (self._due[0][0] - time.monotonic_ns()) / 1e9 if self._due else 3600
            if wait_s > 0:
                try:
                    await asyncio.wait_for(self._changed.wait(), wait_s)
                except TimeoutError:
                    pass
                continue
            _, _, stream = heapq.heappop(self._due)
            stream.send()


class Stream:
    """One response. Its schedule counts from the request."""

    def __init__(self, schedule: Schedule, transport: asyncio.Transport, number: int, model: str) -> None:
        _, chunks, gap_ms, *stall = model.split(":")
        self._schedule, self._transport, self._model = schedule, transport, model
        self._id, self._chunks, self._gap_ns = f"chatcmpl-{number:06d}-{time.time_ns():x}", int(chunks), int(float(gap_ms) * 1e6)
        self._stall_ns = int(float(stall[0]) * 1e6) - self._gap_ns if stall else 0
        self._begin_ns = time.monotonic_ns() + int(FIRST_MS * 1e6) + self._gap_ns * (number % PHASES) // PHASES
        self._sent = 0
        transport.write(HEAD + frame(self._id, model, '{"role":"assistant","content":""}'))
        schedule.add(self._begin_ns, self)

    def send(self) -> None:
        """Send the next chunk, and after the last one the end."""
        if self._transport.is_closing():
            return
        self._transport.write(frame(self._id, self._model, f'{{"content":"{time.monotonic_ns()} "}}'))
        self._sent += 1
        if self._sent < self._chunks:
            stalled = self._stall_ns if self._sent >= self._chunks // 2 else 0
            self._schedule.add(self._begin_ns + self._sent * self._gap_ns + stalled, self)
            return
        usage = f'{{"prompt_tokens":12,"completion_tokens":{self._chunks},"total_tokens":{12 + self._chunks}}}'
        self._transport.write(frame(self._id, self._model, "{}", '"stop"', usage) + b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")


class Connection(asyncio.Protocol):
    """One connection of a client, with one request after another."""

    def __init__(self, schedule: Schedule, numbers: itertools.count[int]) -> None:
        self._schedule, self._numbers, self._received = schedule, numbers, b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, separator, body = self._received.partition(b"\r\n\r\n")
        length = next((int(line[15:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")), 0)
        if separator and len(body) >= length:
            self._received = body[length:]
            Stream(self._schedule, self._transport, next(self._numbers), json.loads(body[:length])["model"])


async def main() -> None:
    """Serve until the process is ended."""
    schedule, numbers, loop = Schedule(), itertools.count(), asyncio.get_running_loop()
    server = await loop.create_server(lambda: Connection(schedule, numbers), "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await schedule.run()


if __name__ == "__main__":
    asyncio.run(main())
