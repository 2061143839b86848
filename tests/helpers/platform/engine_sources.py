"""Engines as sources of steps, requests and events: a server that is polled, and a publisher, each with the collector under test."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

from helpers.servers.http_server import serve_get
from helpers.servers.publisher import Publisher
from helpers.servers.waiting import until
from legato_gpu_agent.collectors.measurement import Measured
from legato_gpu_agent.collectors.zmq_subscriber import ZmqSubscriber
from legato_gpu_agent.plugin.protocol import Datagram

__all__ = ["NOW", "SECOND", "PolledEngine", "PublishingEngine", "polled", "published", "rows_body"]

NOW, SECOND = 1_700_000_000_000_000_000, 10**9


class _Collector(Protocol):
    def collect(self, now_ns: int) -> Any: ...

    def close(self) -> None: ...


class PolledEngine:
    """A server that returns ``bodies`` once each and then an empty list, the collector that reads it, and the emitted datagrams."""

    collector: _Collector

    def __init__(self, url: str) -> None:
        self.url = url
        self.bodies: list[bytes | int] = []
        self.paths: list[str] = []
        self.emitted: list[Datagram] = []
        self.now_ns = NOW

    def answer(self, path: str) -> bytes | int:
        """Return the server's response, or its status."""
        self.paths.append(path)
        return self.bodies.pop(0) if self.bodies else b"[]"

    def poll(self, *rows: object, after_s: float = 1.0) -> list[Measured]:
        """Run a round one second after the last, with these rows."""
        return self.poll_body(rows_body(*rows), after_s)

    def poll_body(self, body: bytes | int, after_s: float = 1.0) -> list[Measured]:
        """Run a round with this body, or with this status."""
        self.bodies.append(body)
        self.now_ns += int(after_s * SECOND)
        return list(self.collector.collect(self.now_ns))


def rows_body(*rows: object) -> bytes:
    """Return a JSON list of these rows."""
    return json.dumps(rows).encode()


class PublishingEngine:
    """A publisher, the collector that receives from it, and the emitted datagrams."""

    collector: _Collector
    topic = b""

    def __init__(self, publisher: Publisher) -> None:
        self.publisher = publisher
        self.emitted: list[Datagram] = []

    @property
    def _subscriber(self) -> ZmqSubscriber:
        subscriber = vars(self.collector)["_subscriber"]
        assert isinstance(subscriber, ZmqSubscriber)
        return subscriber

    def received(self) -> int:
        """Return the number of received messages."""
        return self._subscriber.taken + self._subscriber.bad

    def publish(self, *payloads: bytes, first: int = 0) -> None:
        """Send these messages with numbers, and wait until they are received."""
        wanted = self.received() + len(payloads)
        for number, payload in enumerate(payloads, first):
            self.publisher.publish(number, payload, self.topic)
        until(lambda: self.received() == wanted)


Polled = TypeVar("Polled", bound=PolledEngine)
Publishing = TypeVar("Publishing", bound=PublishingEngine)


@contextmanager
def polled(make: Callable[[str], Polled]) -> Iterator[Polled]:
    """Run the server of an engine; its collector has not polled yet."""
    with serve_get(lambda path: engine.answer(path)) as url:
        engine = make(url)
        try:
            yield engine
        finally:
            engine.collector.close()


@contextmanager
def published(make: Callable[[Publisher], Publishing]) -> Iterator[Publishing]:
    """Run the publisher of an engine; its collector is subscribed."""
    with Publisher() as publisher:
        engine = make(publisher)
        try:
            list(engine.collector.collect(NOW))
            publisher.wait()
            yield engine
        finally:
            engine.collector.close()
