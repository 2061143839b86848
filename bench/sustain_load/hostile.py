"""Requests of senders in trouble, for `bench/overload.py`: more steps, engines or stalls than `legato serve` usually gets at once.

Every request is valid. The module measures nothing.
"""

from __future__ import annotations

import http.client
import random
import time
from collections.abc import Iterator, Sequence
from urllib.parse import urlsplit

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from helpers.builders.spans import native_span, request
from legato._timeline import pack
from legato_gpu_agent.agent.otlp_spans import Engine, FinishedRequest, Step, steps_request

__all__ = ["many_engines", "many_stalls", "many_steps", "post"]

_MS_NS = 1_000_000
_STEP_MS, _SLOW_MS = 25, 325
_FLUSH_STEPS = 65_536
_TEXT = 1
_RETRY_S_MAX = 300.0


def many_steps(now_ns: int) -> list[bytes]:
    """Four requests: sixteen flushes of one engine, a million steps of the last hours. Rows of all in one would exceed its memory."""
    steps = 16 * _FLUSH_STEPS
    flushes = list(_flushes("engine-steps:8000", now_ns - steps * _STEP_MS * _MS_NS, steps, frozenset(), ()))
    return [_joined(flushes[first : first + 4]) for first in range(0, 16, 4)]


def many_engines(now_ns: int) -> list[bytes]:
    """A hundred requests: ten thousand engines with one stream each. Each stream has ninety chunks and one stall."""
    rng = random.Random(1)
    begin_ns = now_ns - 5_000 * _MS_NS
    bodies = []
    for first in range(0, 10_000, 100):
        body = request({"service.name": "many"})
        flushes = list[ExportTraceServiceRequest]()
        for number in range(first, first + 100):
            name = f"engine-{number}.many:8000"
            _stream(body, rng, name, begin_ns, 90, frozenset((50,)))
            flushes += _flushes(name, begin_ns, 91, frozenset((51,)), (f"chatcmpl-{name}",))
        body.MergeFrom(ExportTraceServiceRequest.FromString(_joined(flushes)))
        bodies.append(body.SerializeToString())
    return bodies


def many_stalls(now_ns: int) -> list[bytes]:
    """Two requests: a stream of 65,536 chunks with 10,000 stalls at its client and its server, and the steps of its engine."""
    rng, name, chunks = random.Random(2), "engine-stalls:8000", 65_536
    slow = frozenset(rng.sample(range(1, chunks), 10_000))
    begin_ns = now_ns - (chunks * _STEP_MS + 10_000 * (_SLOW_MS - _STEP_MS)) * _MS_NS
    body = request({"service.name": "many"})
    _stream(body, rng, name, begin_ns, chunks, slow)
    flushes = _flushes(name, begin_ns, chunks + 1, frozenset(step + 1 for step in slow), (f"chatcmpl-{name}",))
    return [body.SerializeToString(), _joined(flushes)]


def post(otlp: str, body: bytes) -> tuple[float, int]:
    """Send a request until it is acknowledged. Return the seconds until then, and how often it was refused for now.

    Raises ``RuntimeError`` if it is refused for good, in part, or for five minutes.
    """
    parts, began_s, refused = urlsplit(otlp), time.monotonic(), 0
    while time.monotonic() - began_s < _RETRY_S_MAX:
        connection = http.client.HTTPConnection(parts.hostname or "127.0.0.1", parts.port, timeout=120)
        connection.request("POST", "/v1/traces", body, {"Content-Type": "application/x-protobuf"})
        reply = connection.getresponse()
        text = reply.read()
        connection.close()
        if reply.status == 200 and not text:
            return time.monotonic() - began_s, refused
        if reply.status not in (429, 503):
            raise RuntimeError(f"a valid request of {len(body)} bytes was answered by {reply.status}: {text[:300]!r}")
        refused += 1
        time.sleep(float(reply.headers.get("Retry-After") or 1))
    raise RuntimeError(f"a request of {len(body)} bytes was refused for five minutes")


def _stream(body: ExportTraceServiceRequest, rng: random.Random, engine: str, begin_ns: int, chunks: int, slow: frozenset[int]) -> None:
    """Add both vantages of a stream with a chunk in each step from the first; ``slow``: the chunks that come late."""
    at_us, times_us = 0, []
    for number in range(chunks):
        at_us += 1000 * (_SLOW_MS if number in slow else _STEP_MS)
        times_us.append(at_us)
    trace = rng.randbytes(16)
    for vantage, late_us in (("client", 1_000), ("server", 0)):
        timeline = pack([each + late_us for each in times_us], [4] * chunks, [1] * chunks, [_TEXT] * chunks)
        attributes = {
            "gen_ai.response.id": f"chatcmpl-{engine}",
            "legato.stream.timeline": timeline,
            "legato.stream.vantage": vantage,
            "legato.engine.id": engine if vantage == "server" else "",
        }
        start_ns = begin_ns + _STEP_MS * _MS_NS
        native_span(body, attributes, trace_id=trace, rng=rng, start_ns=start_ns, duration_ns=1000 * (at_us + late_us + 1_000))


def _flushes(engine: str, begin_ns: int, steps: int, slow: frozenset[int], ended: Sequence[str]) -> Iterator[ExportTraceServiceRequest]:
    """Yield the flushes of an engine; ``slow``: steps that take longer; ``ended``: the requests that end in the last step."""
    at_ns = begin_ns
    for first in range(0, steps, _FLUSH_STEPS):
        made = []
        for number in range(first, min(first + _FLUSH_STEPS, steps)):
            # No two steps of an engine take as long to the microsecond.
            interval_us = 1000 * (_SLOW_MS if number in slow else _STEP_MS) - number * 7_919 % 251
            at_ns += 1000 * interval_us
            made.append(
                Step(number=number, recorded_ns=at_ns, interval_us=interval_us, interval_max_us=interval_us, running=1, waiting=0,
                     prefill_requests=0, prefill_tokens=0, decode_requests=1, decode_tokens=1, elapsed_us=interval_us, kv_used_ppm=1,
                     preempted=0)
            )  # fmt: skip
        is_last = first + _FLUSH_STEPS >= steps
        finished = [FinishedRequest(made[-1].number, each, "length", 0, 10, steps, 0, 0, 0) for each in ended] if is_last else []
        yield steps_request(Engine(engine, begin_ns), made, finished)


def _joined(flushes: Sequence[ExportTraceServiceRequest] | Iterator[ExportTraceServiceRequest]) -> bytes:
    body = ExportTraceServiceRequest()
    for each in flushes:
        if body.resource_spans:
            body.resource_spans[0].scope_spans[0].spans.extend(each.resource_spans[0].scope_spans[0].spans)
        else:
            body.CopyFrom(each)
    content: bytes = body.SerializeToString()
    return content
