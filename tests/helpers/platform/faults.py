"""A proxy in front of the ingest with the faults of networks and overloaded servers: refused, late and truncated.

It knows where an HTTP/1.1 request begins and ends (by Content-Length, as OTLP exporters send), so a fault affects a request at a known
place: half of its body, or the reply to a request that the ingest has already stored. It keeps a hash of each body, so it can count retries
and check that they are identical.
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
    """Listens at ``url`` (``listen_port``, 0: any) and forwards to ``port``; ``fault`` applies to requests that begin from now on.

    ``count``: requests by fault. ``bodies``: number of requests by hash of the body.
    """

    def __init__(self, port: int, listen_port: int = 0) -> None:
        self._port, self._listen_port = port, listen_port
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
        """The number of requests with a body that was received before."""
        return self.bodies.total() - len(self.bodies)

    def start(self) -> None:
        """Start listening."""
        self._thread.start()
        self._listening.wait()

    def close(self) -> None:
        """Stop listening; open connections are closed."""
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join()

    async def _run(self) -> None:
        self._loop, self._end = asyncio.get_running_loop(), asyncio.Event()
        server = await asyncio.start_server(self._serve, "127.0.0.1", self._listen_port, limit=2**20)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        self._listening.set()
        await self._end.wait()
        server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # The event loop keeps no reference to its tasks, so a task that waits for a connection could be garbage-collected.
        task = asyncio.current_task()
        self._tasks.add(task)
        # Connections closed at either end are the purpose of this proxy.
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            while await self._request(reader, writer):
                pass
        writer.close()
        self._tasks.discard(task)

    async def _request(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Handle one request; return whether the connection can be used again."""
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
            # Not close(), which waits for a peer that does not read; the loop may end before.
            out.transport.abort()
        if fault == "slow":
            await asyncio.sleep(_SLOW_S)
        writer.write(reply[: len(reply) // 2] if fault == "cut_reply" else reply)
        await writer.drain()
        return fault != "cut_reply"


async def _message(reader: asyncio.StreamReader) -> bytes:
    """Return head and body of one request or reply."""
    head = await reader.readuntil(b"\r\n\r\n")
    for line in head.split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        if name.strip().lower() == b"content-length":
            return head + await reader.readexactly(int(value))
    return head


@contextlib.contextmanager
def faulty(port: int, listen_port: int = 0) -> Iterator[FaultyProxy]:
    """Run a proxy in front of ``port``; close it at the end."""
    proxy = FaultyProxy(port, listen_port)
    proxy.start()
    try:
        yield proxy
    finally:
        proxy.close()
