"""Sends the spans of a deployment in real time, as its processes would: one request a process and second.

A request that is refused for now (429, 503) is sent again after the time that the reply asks for, as an exporter does. Each acknowledgement
is timed from the first attempt. The module measures nothing else.
"""

from __future__ import annotations

import heapq
import http.client
import queue
import random
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from bench.sustain_load.deployment import SERVICES, EngineReplay, Event, body_of

__all__ = ["Acknowledged", "Sending"]

_RETRY_S = 1.0


@dataclass(slots=True)
class Acknowledged:
    """What was acknowledged. ``seconds``: the time of each acknowledgement; ``refused``: number of replies 429 and 503."""

    seconds: list[float] = field(default_factory=list)
    spans: int = 0
    streams: int = 0
    chunks: int = 0
    steps: int = 0
    refused: int = 0
    failed: int = 0


class Sending:
    """Replays engines from now on for so many seconds. ``late_s_max``: how far the sender itself was behind at most."""

    def __init__(self, otlp: str, engines: Sequence[EngineReplay], seconds: float) -> None:
        parts = urlsplit(otlp)
        self._address = parts.hostname or "127.0.0.1", parts.port or 4318
        self._engines, self._until_s = engines, time.time() + seconds
        self._bodies: queue.SimpleQueue[tuple[str, float, list[Event]] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self.done = Acknowledged()
        self.late_s_max = 0.0
        # Ends of client streams for the probes: trace id, span id, end (ns).
        self.ended: queue.SimpleQueue[tuple[bytes, bytes, int]] = queue.SimpleQueue()

    def run(self) -> None:
        """Send until the time is over and everything is acknowledged."""
        # A connection for each process, so that none waits for the acknowledgement of another.
        senders = [threading.Thread(target=self._send_bodies) for _ in range(2 * len(self._engines) + SERVICES)]
        for each in senders:
            each.start()
        self._schedule()
        for _ in senders:
            self._bodies.put(None)
        for each in senders:
            each.join()

    def _schedule(self) -> None:
        """Hand over the spans of each process once a second, each process at another moment of the second."""
        # The next event of each engine; ``None``: the beginning of its next round.
        heads: list[tuple[int, int, Event | None]] = [(engine.next_ns, number, None) for number, engine in enumerate(self._engines)]
        heapq.heapify(heads)
        rounds: dict[int, Iterator[Event]] = {}
        waiting: dict[str, list[Event]] = {}
        due: list[tuple[float, str]] = []
        rng = random.Random(1)
        while time.time() < self._until_s:
            now_ns = time.time_ns()
            while heads and heads[0][0] <= now_ns:
                _, number, event = heapq.heappop(heads)
                if event is None:
                    rounds[number] = self._engines[number].round()
                else:
                    if event.sender not in waiting:
                        waiting[event.sender] = []
                        heapq.heappush(due, (event.at_ns / 1e9 + rng.random(), event.sender))
                    waiting[event.sender].append(event)
                following = next(rounds[number], None)
                heapq.heappush(heads, (following.at_ns if following else self._engines[number].next_ns, number, following))
            while due and due[0][0] <= time.time():
                at_s, sender = heapq.heappop(due)
                self._bodies.put((sender, at_s, waiting.pop(sender)))
            time.sleep(0.01)
        for sender, rest in waiting.items():
            self._bodies.put((sender, time.time(), rest))

    def _send_bodies(self) -> None:
        connection = http.client.HTTPConnection(*self._address, timeout=120)
        while (taken := self._bodies.get()) is not None:
            sender, due_s, events = taken
            self.late_s_max = max(self.late_s_max, time.time() - due_s)
            content = body_of(sender, [event.span for event in events]).SerializeToString()
            started = time.perf_counter()
            is_stored = self._post(connection, content)
            self._count(events, time.perf_counter() - started, is_stored)
        connection.close()

    def _post(self, connection: http.client.HTTPConnection, content: bytes) -> bool:
        # A kept connection that the server has closed since is opened again at once, as by any exporter.
        may_be_stale = True
        while True:
            try:
                connection.request("POST", "/v1/traces", content, {"Content-Type": "application/x-protobuf"})
                reply = connection.getresponse()
                body = reply.read()
            except (OSError, http.client.HTTPException):
                connection.close()
                if may_be_stale:
                    may_be_stale = False
                    continue
                if time.time() > self._until_s + 60:
                    return False
                time.sleep(_RETRY_S)
                continue
            if reply.status == 200:
                return not body
            if reply.status not in (429, 503):
                return False
            with self._lock:
                self.done.refused += 1
            time.sleep(float(reply.headers.get("Retry-After") or _RETRY_S))

    def _count(self, events: Sequence[Event], seconds: float, is_stored: bool) -> None:
        with self._lock:
            done = self.done
            if not is_stored:
                done.failed += 1
                return
            done.seconds.append(seconds)
            done.spans += len(events)
            done.streams += sum(event.is_client for event in events)
            done.chunks += sum(event.chunks for event in events)
            done.steps += sum(event.steps for event in events)
        for event in events:
            if event.is_client:
                self.ended.put((event.span.trace_id, event.span.span_id, event.span.end_time_unix_nano))
