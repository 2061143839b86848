"""A proxy before the ingest that does what networks and overloaded servers do: refuses, answers late, cuts half-way.

One idea: it knows where an HTTP/1.1 request begins and ends (by Content-Length, as OTLP exporters send), so a fault hits a whole request at
a known place: half of its body, or the reply of one that the ingest has stored already. It remembers each body by its hash, so it can tell
how many requests were retries, and that a retry is the same to the byte.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Literal

__all__ = ["Fault", "FaultyProxy", "faulty"]

Fault = Literal["none", "refuse", "slow", "cut_request", "cut_reply"]
_SLOW_S = 2.0
_REFUSAL = b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nContent-Length: 0\r\n\r\n"


class FaultyProxy:
    """Stands at ``url`` before ``port``; ``fault`` is what happens to the requests that begin now.

    ``count``: requests by what happened to them. ``bodies``: how often each body came.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self.fault: Fault = "none"
        self.count: Counter[str] = Counter()
        self.bodies: Counter[bytes] = Counter()
        self.url = ""
        self._listening = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)
        self._loop: asyncio.AbstractEventLoop
        self._end: asyncio.Event
        self._tasks: set[asyncio.Task[None] | None] = set()

    @property
    def retries(self) -> int:
        """Requests whose body had come before."""
        return self.bodies.total() - len(self.bodies)

    def start(self) -> None:
        """Listen."""
        self._thread.start()
        self._listening.wait()

    def close(self) -> None:
        """Stop listening; connections that are open are cut."""
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join()

    async def _run(self) -> None:
        self._loop, self._end = asyncio.get_running_loop(), asyncio.Event()
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=2**20)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        self._listening.set()
        await self._end.wait()
        server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # The loop itself holds on to no task: one that waits for a connection nobody else knows would be collected.
        task = asyncio.current_task()
        self._tasks.add(task)
        # A connection that is cut, at either end, is what this is for.
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            while await self._request(reader, writer):
                pass
        writer.close()
        self._tasks.discard(task)

    async def _request(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Handle one request; whether the connection goes on."""
        request = await _message(reader)
        fault = self.fault
        self.count[fault] += 1
        self.bodies[hashlib.blake2b(request.partition(b"\r\n\r\n")[2], digest_size=16).digest()] += 1
        if fault == "refuse":
            writer.write(_REFUSAL)
            await writer.drain()
            return True
        behind, out = await asyncio.open_connection("127.0.0.1", self._port, limit=2**20)
        try:
            out.write(request[: len(request) // 2] if fault == "cut_request" else request)
            await out.drain()
            if fault == "cut_request":
                return False
            reply = await _message(behind)
        finally:
            out.close()
        if fault == "slow":
            await asyncio.sleep(_SLOW_S)
        writer.write(reply[: len(reply) // 2] if fault == "cut_reply" else reply)
        await writer.drain()
        return fault != "cut_reply"


async def _message(reader: asyncio.StreamReader) -> bytes:
    """Head and body of one request or reply."""
    head = await reader.readuntil(b"\r\n\r\n")
    for line in head.split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        if name.strip().lower() == b"content-length":
            return head + await reader.readexactly(int(value))
    return head


@contextlib.contextmanager
def faulty(port: int) -> Iterator[FaultyProxy]:
    """A proxy before ``port``, closed at the end."""
    proxy = FaultyProxy(port)
    proxy.start()
    try:
        yield proxy
    finally:
        proxy.close()
