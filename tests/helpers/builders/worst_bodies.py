"""Bodies of OTLP requests that ask for as much as a body of their size can: memory, rows, days. Written byte by byte.

``CASES`` holds a maker for each kind, with the signal that it is sent as. A maker returns a body of about the given size.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Iterable, Sequence
from itertools import count

from helpers.builders.json_otlp import json_of
from helpers.builders.spans import native_span, request
from legato_ingest.otlp.protobuf import message
from legato_ingest.otlp.signals import LOGS, POINTS, SPANS, Signal

__all__ = [
    "CASES",
    "DAY_NS",
    "ENGINE",
    "NATIVE",
    "ZSTD_BOMB",
    "column",
    "finished",
    "packed",
    "point",
    "points",
    "resources_in_json",
    "span",
    "spans",
    "steps",
    "text",
]

DAY_NS = 86_400_000_000_000
_CHUNKS_MAX = 65_536
_SECOND_NS = 1_000_000_000
_RNG = random.Random(3)
_BYTES, _ARRAY, _KVLIST = 7, 5, 6
ZSTD_BOMB = bytes.fromhex("28b52ffd0058") + 254 * ((1 << 1 | 2**17 << 3).to_bytes(3, "little") + b"x") + (1).to_bytes(3, "little")
"""33 MB in 1 KB: a frame of 254 blocks that repeat a byte, each of 128 KiB (RFC 8878, section 3.1.1.2.2), and an empty last block."""
Pair = tuple[bytes, bytes]


def column(width: int, base: int, content: bytes = b"", exceptions: Sequence[tuple[int, int]] = ()) -> bytes:
    """Return a packed column (schema/TIMELINE.md)."""
    places, values = (b"".join(struct.pack(form, each[at]) for each in exceptions) for at, form in ((0, "<H"), (1, "<I")))
    return struct.pack("<BIH", width, base, len(exceptions)) + content + places + values


def packed(chunks: int, columns: dict[int, bytes]) -> bytes:
    """Return a packed timeline, or packed steps."""
    directory = b"".join(struct.pack("<BI", name, len(payload)) for name, payload in columns.items())
    return struct.pack("<BBI", 1, len(columns), chunks) + directory + b"".join(columns.values())


def _wrapped(content: bytes, *numbers: int) -> bytes:
    for number in reversed(numbers):
        content = message(number, content)
    return content


def resources_in_json(now_ns: int, count: int) -> bytes:
    """Return a body in JSON with a good span, one that is refused, and so many ignored ones, each in a separate resource."""
    good = request()
    native_span(good, start_ns=now_ns - 5_000)
    others = [b'{"scopeSpans":[{"spans":[7]}]}', *[b'{"scopeSpans":[{"spans":[{"name":"x"}]}]}'] * count]
    return json_of(good).removesuffix(b"]}") + b"," + b",".join(others) + b"]}"


def _pairs(number: int, pairs: Iterable[Pair]) -> bytes:
    return b"".join(message(number, message(1, key) + message(2, value)) for key, value in pairs)


def _fixed64(number: int, value: int) -> bytes:
    return bytes([number << 3 | 1]) + struct.pack("<Q", value)


def text(value: str | bytes) -> bytes:
    """Return an attribute's value."""
    return message(1, value.encode() if isinstance(value, str) else value)


def _blob(value: bytes) -> bytes:
    return message(_BYTES, value)


def span(pairs: Iterable[Pair], start_ns: int, end_ns: int, more: bytes = b"") -> bytes:
    """Return a span with random ids as a field of its scope."""
    ids = message(1, _RNG.randbytes(16)) + message(2, _RNG.randbytes(8))
    return message(2, ids + _fixed64(7, start_ns) + _fixed64(8, end_ns) + _pairs(9, pairs) + more)


def spans(made: Iterable[bytes], resource: Iterable[Pair] = ()) -> bytes:
    """Return a request of one resource and one scope."""
    return message(1, message(1, _pairs(1, resource)) + message(2, b"".join(made)))


def point(time_ns: int, pairs: Iterable[Pair] = (), more: bytes = b"") -> bytes:
    """Return a data point of a number as a field of its gauge."""
    return message(1, _fixed64(3, time_ns) + _fixed64(4, 0) + _pairs(7, pairs) + more)


def points(made: Iterable[bytes], resource: Iterable[Pair] = (), name: str = "a", kind: int = 5) -> bytes:
    """Return a request of one metric."""
    metric = message(1, name.encode()) + message(kind, b"".join(made))
    return message(1, message(1, _pairs(1, resource)) + message(2, message(2, metric)))


NATIVE: list[Pair] = [(b"legato.stream.vantage", text("client")), (b"legato.stream.outcome", text("complete"))]
ENGINE: list[Pair] = [(b"legato.engine.id", text("e"))]


def steps(start_ns: int, rows: int, dt_us: int, engine: Sequence[Pair] = ENGINE) -> bytes:
    """Return a flush of steps at equal distances."""
    return span([*engine, (b"legato.engine.steps", _blob(packed(rows, {1: column(0, dt_us), 2: column(0, 1)})))], start_ns, start_ns)


def finished(time_ns: int, responses: int) -> bytes:
    """Return a flush of one step with this many finished requests without ids."""
    ids = message(_ARRAY, message(1, text("")) * responses)
    first = (b"legato.engine.steps", _blob(packed(1, {1: column(0, 0)})))
    return span([*ENGINE, first, (b"legato.engine.finished.response_id", ids)], time_ns, time_ns)


def _filled(make: Callable[[int], bytes], size: int) -> list[bytes]:
    made, total = list[bytes](), 0
    for number in count():
        if total >= size:
            return made
        made.append(make(number))
        total += len(made[-1])
    raise AssertionError


def _streams(timeline: bytes, now_ns: int, size: int) -> bytes:
    pairs = [*NATIVE, (b"legato.stream.timeline", _blob(timeline))]
    return spans(_filled(lambda _: span(pairs, now_ns - _SECOND_NS, now_ns), size))


_FLAT = {1: column(0, 10), 2: column(0, 4), 3: column(0, 1), 4: column(0, 1), 5: column(0, 3)}
_SOCKETS = {**_FLAT, **{number: column(0, 5) for number in (10, 11, 12)}}
_LONG = "ü" * 1024
_STREAM_KEYS = (
    "error.type", "service.name", "service.version", "gen_ai.provider.name", "gen_ai.request.model", "gen_ai.response.model",
    "gen_ai.response.id", "http.route", "gen_ai.conversation.id", "server.address", "legato.engine.id", "legato.client.hash",
    "legato.stream.transport", "legato.stream.clock", "client.address",
)  # fmt: skip


def _tight(now_ns: int, size: int) -> bytes:
    return _streams(packed(_CHUNKS_MAX, {**_FLAT, 1: column(8, 20_000, _RNG.randbytes(_CHUNKS_MAX))}), now_ns, size)


def _full_steps(now_ns: int, size: int) -> bytes:
    content = packed(_CHUNKS_MAX, {1: column(0, 10), 2: column(0, 1), **{number: column(0, 7) for number in range(3, 16)}})
    flush = [*ENGINE, (b"legato.engine.steps", _blob(content))]
    return spans(_filled(lambda _: span(flush, now_ns - _SECOND_NS, now_ns), size))


def _long_engine(now_ns: int, size: int) -> bytes:
    return spans(_filled(lambda _: steps(now_ns - _SECOND_NS, 2_000, 10, ()), size), [(b"legato.engine.id", text(_LONG))])


def _shared_texts(now_ns: int, size: int) -> bytes:
    resource = [(key.encode(), text(_LONG)) for key in _STREAM_KEYS]
    return spans(_filled(lambda _: span(NATIVE, now_ns - _SECOND_NS, now_ns), size), resource)


def _rejected(now_ns: int, size: int) -> bytes:
    bad = message(2, _pairs(9, [(b"legato.stream.vantage", text("x"))]))
    return spans([bad] * (size // len(bad)), [(b"service.name", text(_LONG)), (b"legato.emitter", text(_LONG))])


def _scopes(now_ns: int, size: int) -> bytes:
    return message(1, b"".join(_filled(lambda number: message(2, _wrapped(b"%x" % number, 1, 1) + b"\x12\x00"), size)))


def _attributes(now_ns: int, size: int) -> bytes:
    many = [(b"%x" % number, b"") for number in range(10_000)]
    return spans(_filled(lambda _: span([*NATIVE, *many], now_ns - _SECOND_NS, now_ns), size))


def _nested(now_ns: int, size: int) -> bytes:
    value = b""
    for _ in range(45):
        value = _wrapped(value, _ARRAY, 1)
    return spans(_filled(lambda _: span([*NATIVE, (b"k", value)], now_ns - _SECOND_NS, now_ns), size))


def _events(now_ns: int, size: int) -> bytes:
    def event(number: int) -> bytes:
        return message(11, _fixed64(1, now_ns - _SECOND_NS + number) + message(2, b"gen_ai.chunk" + b"x" * (not number)))

    chat = [(b"gen_ai.operation.name", text("chat")), (b"gen_ai.request.model", text("m"))]
    return spans(_filled(lambda _: span(chat, now_ns - _SECOND_NS, now_ns, b"".join(map(event, range(4_000)))), size))


def _wide_resource(now_ns: int, size: int) -> bytes:
    resource = [(b"k%d" % number, text(b"v%d" % number)) for number in range(120)]
    return points(_filled(lambda number: point(now_ns, [(b"x", text(b"%x" % number))]), size), resource)


def _map(now_ns: int, size: int) -> bytes:
    return message(_KVLIST, b"".join(_wrapped(b"%x" % number, 1, 1) for number in range(min(size, 900_000) // 8)))


def _histogram(now_ns: int) -> bytes:
    return _fixed64(3, now_ns) + _fixed64(4, 0) + message(6, bytes(8 * 1025)) + message(7, struct.pack("<1024d", *range(1024)))


# By name: the signal, and the function that returns a body of about so many bytes that arrives at ``now_ns``.
CASES: dict[str, tuple[Signal, Callable[[int, int], bytes]]] = {
    "streams without chunks": (SPANS, lambda now, size: spans(_filled(lambda _: span(NATIVE, now - _SECOND_NS, now), size))),
    "streams that share long texts": (SPANS, _shared_texts),
    "streams of 65,536 chunks": (SPANS, lambda now, size: _streams(packed(_CHUNKS_MAX, _FLAT), now, size)),
    "streams of 65,536 reads": (SPANS, lambda now, size: _streams(packed(_CHUNKS_MAX, _SOCKETS), now, size)),
    "streams with different gaps": (SPANS, _tight),
    "span events": (SPANS, _events),
    "flushes of 65,536 steps": (SPANS, _full_steps),
    "flushes with a long engine id": (SPANS, _long_engine),
    "flushes of one step": (SPANS, lambda now, size: spans(_filled(lambda _: steps(now - _SECOND_NS, 1, 0), size))),
    "finished requests": (SPANS, lambda now, size: spans(_filled(lambda _: finished(now - _SECOND_NS, 30_000), size))),
    "silences": (
        SPANS,
        lambda now, size: spans(
            _filled(
                lambda _: span([(b"legato.stream.silent_since", b"\x18\x00")], now - _SECOND_NS, now, message(4, bytes(7) + b"p")), size
            )
        ),
    ),
    "rejected spans": (SPANS, _rejected),
    "spans that are no UTF-8": (
        SPANS,
        lambda now, size: spans([span(NATIVE, now - _SECOND_NS, now), *[message(2, b"\x2a\x02\xff\xff")] * (size // 6)]),
    ),
    "scopes": (SPANS, _scopes),
    "spans with 10,000 attributes": (SPANS, _attributes),
    "one span of empty attributes": (SPANS, lambda now, size: spans([message(2, b"\x4a\x00" * (size // 2))])),
    "nested values": (SPANS, _nested),
    "data points": (POINTS, lambda now, size: points(_filled(lambda number: point(now - number), size))),
    "a series for each point": (
        POINTS,
        lambda now, size: points(_filled(lambda number: point(now, [(b"%x" % number, text(b"%x" % number))]), size)),
    ),
    "points of a wide resource": (POINTS, _wide_resource),
    "points with a long name": (POINTS, lambda now, size: points(_filled(lambda number: point(now - number), size), name=_LONG)),
    "points without a time": (POINTS, lambda now, size: points([b"\x0a\x00"] * min(size // 2, 250_000))),
    "summaries": (POINTS, lambda now, size: points([b"\x0a\x00"] * min(size // 2, 250_000), kind=11)),
    "histograms": (POINTS, lambda now, size: points(_filled(lambda number: message(1, _histogram(now - number)), size), kind=9)),
    "histograms with two exponential sides": (
        POINTS,
        lambda now, size: points(
            _filled(lambda number: message(1, _fixed64(3, now - number) + _wrapped(b"\x01" * 16_000, 8, 2)), size), kind=10
        ),
    ),
    "one exponential histogram": (
        POINTS,
        lambda now, size: points([message(1, _fixed64(3, now) + _wrapped(b"\x01" * size, 8, 2))], kind=10),
    ),
    "a large map": (POINTS, lambda now, size: points([point(now, [(b"k", _map(now, size))])])),
    "exemplars": (POINTS, lambda now, size: points(_filled(lambda number: point(now - number, more=b"\x2a\x00" * 1_000), size))),
    "log records": (LOGS, lambda now, size: _wrapped(b"\x12\x00" * min(size // 2, 250_000), 1, 2)),
    "log attributes": (LOGS, lambda now, size: _wrapped(b"".join([message(2, b"\x32\x00" * 3_000)] * (size // 6_000 + 1)), 1, 2)),
    "log scopes": (LOGS, _scopes),
}
