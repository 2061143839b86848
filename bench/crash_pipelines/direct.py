"""Senders that post to `legato serve` and keep unacknowledged bodies, while it is killed repeatedly.

A sender does what a correct exporter may do with a request: send it again unchanged, cut in two, or once more after its acknowledgement.
"""

from __future__ import annotations

import collections
import random
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import httpx
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest, ExportTraceServiceResponse

from bench.crash_pipelines.serve import Rev, Serve
from helpers.builders.spans import native_span, request, scope_of

__all__ = ["Sent", "storm"]

_SENDERS = 4
# The process of the store may be started again after pauses of half a minute.
_PATIENCE_S = 300
# The share of large bodies, and their streams: with long texts in each row they are stored in two batches.
_LARGE_SHARE, _LARGE_STREAMS = 0.002, 7_500
_LONG_KEYS = ("service.version", "gen_ai.conversation.id", "http.route", "gen_ai.response.model", "legato.client.hash")


@dataclass
class Sent:
    """What was acknowledged, over all senders."""

    revs: set[Rev] = field(default_factory=set)
    acknowledged: int = 0
    retries: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, body: ExportTraceServiceRequest) -> None:
        """A body that was acknowledged as a whole."""
        revs = {rev_of(span) for span in scope_of(body).spans}
        with self.lock:
            self.revs |= revs
            self.acknowledged += 1


def rev_of(span: object) -> Rev:
    """The identity under which a span's row is stored: a snapshot has its stream's span id."""
    attributes = {attribute.key: attribute.value for attribute in span.attributes}  # type: ignore[attr-defined]
    stream = attributes.get("legato.stream.span_id")
    span_id = stream.string_value if stream is not None else span.span_id.hex()  # type: ignore[attr-defined]
    return span.trace_id.hex(), span_id, attributes["legato.stream.rev"].int_value  # type: ignore[attr-defined]


def body_of(rng: random.Random) -> ExportTraceServiceRequest:
    """A body of streams of 20 chunks, a third of them with a snapshot of their own beside the end. A few bodies are large."""
    is_large = rng.random() < _LARGE_SHARE
    body = request({"service.name": "crash", **(dict.fromkeys(_LONG_KEYS, "x" * 1_024) if is_large else {})})
    for _ in range(_LARGE_STREAMS if is_large else rng.choice((1, 1, 5, 50, 200))):
        start = time.time_ns() - rng.randrange(3_600_000_000_000)
        snapshot = rng.random() < 0.33
        span = native_span(body, {"legato.stream.rev": 1 + snapshot}, start_ns=start, rng=rng)
        if snapshot:
            attributes = {
                "legato.stream.rev": 1,
                "legato.stream.span_id": span.span_id.hex(),
                "legato.stream.next_due": 30.0,
                "legato.stream.outcome": "running",
            }
            native_span(body, attributes, trace_id=span.trace_id, start_ns=start, rng=rng, name="legato.stream.snapshot")
    return body


def cut(body: ExportTraceServiceRequest) -> Iterator[ExportTraceServiceRequest]:
    """The body as two, its spans dealt out like cards."""
    for half in (0, 1):
        part = ExportTraceServiceRequest()
        part.CopyFrom(body)
        del scope_of(part).spans[:]
        scope_of(part).spans.extend(list(scope_of(body).spans)[half::2])
        if scope_of(part).spans:
            yield part


def taken(client: httpx.Client, url: str, body: ExportTraceServiceRequest) -> bool:
    """Whether the body was acknowledged; raises when it was refused for good or in part."""
    try:
        reply = client.post(url, content=body.SerializeToString(), headers={"Content-Type": "application/x-protobuf"})
    except httpx.TransportError:
        return False
    if reply.status_code in (429, 503):
        return False
    if reply.status_code != 200 or ExportTraceServiceResponse.FromString(reply.content).HasField("partial_success"):
        raise SystemExit(f"{reply.status_code}: {reply.content[:300]!r}")
    return True


def send(url: str, sent: Sent, stop: threading.Event, failed: threading.Event, rng: random.Random) -> None:
    """Post bodies until ``stop``; the last body is also repeated until it is acknowledged, or until `serve` has ``failed``."""
    with httpx.Client(timeout=30) as client:
        while not (stop.is_set() or failed.is_set()):
            waiting, until_s = collections.deque([body_of(rng)]), time.monotonic() + _PATIENCE_S
            while waiting and not failed.is_set():
                if time.monotonic() > until_s:
                    raise SystemExit(f"no part of a body was acknowledged within {_PATIENCE_S} s")
                body = waiting.popleft()
                if taken(client, url, body):
                    sent.add(body)
                    until_s = time.monotonic() + _PATIENCE_S
                    if rng.random() < 0.1:
                        taken(client, url, body)
                    continue
                with sent.lock:
                    sent.retries += 1
                waiting.extend(cut(body) if rng.random() < 0.5 else (body,))
                time.sleep(0.03)


def storm(serve: Serve, kills: int, spans: int, seed: int, *, of_store: bool = False) -> Sent:
    """Kill and restart under load until there were enough kills and spans. ``of_store``: kill the process of the store alone."""
    sent, stop, failed, failures = Sent(), threading.Event(), threading.Event(), list[BaseException]()
    url = f"http://127.0.0.1:{serve.otlp}/v1/traces"

    def guarded(number: int) -> None:
        try:
            send(url, sent, stop, failed, random.Random(f"{seed}/{number}"))
        except BaseException as error:
            failures.append(error)
            failed.set()

    senders = [threading.Thread(target=guarded, args=(number,)) for number in range(_SENDERS)]
    for sender in senders:
        sender.start()
    rng = random.Random(seed)
    try:
        for _ in range(kills):
            if failed.is_set():
                break
            time.sleep(rng.uniform(0.05, 0.8))
            if of_store:
                serve.kill_store()
            else:
                serve.kill()
                serve.start()
        while len(sent.revs) < spans and not failed.is_set():
            time.sleep(0.05)
    except BaseException:
        failed.set()
        raise
    finally:
        stop.set()
        for sender in senders:
            sender.join()
    if failures:
        raise failures[0]
    return sent
