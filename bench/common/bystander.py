"""What an attack on `legato serve` does to others: the acknowledgements of an honest sender, and the memory. The module attacks nothing."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import httpx

from bench.crash_pipelines.serve import Serve, bearer, store_pid
from helpers.builders.spans import native_span, request
from legato_ingest.storage.process_memory import anonymous_bytes

__all__ = ["Memory", "Sender", "watched"]

_STORED = "SELECT uniqExact(trace_id) FROM streams WHERE service_name = 'honest'"
_SEND_EVERY_S, _SAMPLE_S = 0.1, 0.01


@dataclass
class Sender:
    """Sends a stream every 100 ms to ``url`` until ``stop`` is set, with a token if there is one.

    ``seconds``: of each acknowledgement; ``sent_s``: when its request was sent (monotonic clock). ``lost``: acknowledged streams that are
    not stored, once ``watched`` has ended.
    """

    url: str
    token: str = ""
    stop: threading.Event = field(default_factory=threading.Event)
    seconds: list[float] = field(default_factory=list)
    sent_s: list[float] = field(default_factory=list)
    sent: int = 0
    failures: int = 0
    lost: int = 0

    def run(self) -> None:
        """Send, and note how long each acknowledgement took."""
        rng, headers = random.Random(7), {"Content-Type": "application/x-protobuf", **bearer(self.token)}
        with httpx.Client(timeout=60) as client:
            while not self.stop.wait(_SEND_EVERY_S):
                body = request({"service.name": "honest"})
                native_span(body, {}, start_ns=time.time_ns(), rng=rng)
                started = time.monotonic()
                reply = client.post(self.url, content=body.SerializeToString(), headers=headers)
                self.seconds.append(time.monotonic() - started)
                self.sent_s.append(started)
                self.sent += reply.status_code == 200
                self.failures += reply.status_code != 200


@dataclass
class Memory:
    """The largest memory of the process of the store since ``take``, over all processes that the store has had, until ``stop`` is set.

    ``of_serve``: with the memory of `legato serve` itself.
    """

    serve_pid: int
    of_serve: bool
    stop: threading.Event = field(default_factory=threading.Event)
    peak: int = 0
    pids: set[int] = field(default_factory=set)

    def run(self) -> None:
        """Sample."""
        pid = store_pid(self.serve_pid)
        while not self.stop.wait(_SAMPLE_S):
            memory = anonymous_bytes(pid)
            if not memory:
                pid = store_pid(self.serve_pid)
                continue
            self.pids.add(pid)
            self.peak = max(self.peak, memory + ((anonymous_bytes(self.serve_pid) or 0) if self.of_serve else 0))

    def take(self) -> int:
        """Return the peak since the last call, in bytes."""
        peak, self.peak = self.peak, 0
        return peak


@contextlib.contextmanager
def watched(serve: Serve, *, of_serve: bool) -> Iterator[tuple[Sender, Memory]]:
    """Run an honest sender and the watch of the memory beside an attack."""
    sender, memory = Sender(f"http://127.0.0.1:{serve.otlp}/v1/traces", serve.writer), Memory(serve.process.pid, of_serve)
    threads = [threading.Thread(target=each.run, daemon=True) for each in (sender, memory)]
    for thread in threads:
        thread.start()
    try:
        yield sender, memory
    finally:
        sender.stop.set()
        threads[0].join()
    ((stored,),) = serve.rows(_STORED)
    sender.lost = sender.sent - int(stored)
    memory.stop.set()
    threads[1].join()
