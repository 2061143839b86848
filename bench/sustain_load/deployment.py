"""A deployment that replays recordings in real time: engines, their servers, and the services of their end users.

Each engine repeats one recording in rounds, with a random start in its first. What a round sends is built once per recording; a copy has
other ids, names and times. The agents flush once a second, servers and services send the spans of ended streams once a second. The module
sends nothing.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import ScopeSpans, Span

from demo.past import finished_request, packed, step_record
from demo.recording import EngineStep, TwoSidedStream, engines_of, load, two_sided_streams
from helpers.builders.spans import any_value, native_span, request, scope_of
from legato_gpu_agent.agent.otlp_spans import Engine, steps_request

__all__ = ["SERVICES", "EngineReplay", "Event", "Template", "body_of", "templates"]

READERS, SERVICES, MODELS = 10_000, 10, 3
# Spans of templates begin so much later, because a client's may begin before the recording's first request at its server.
_LEAD_NS = 1_000_000_000
# Pause of an engine between two rounds.
_PAUSE_US = 500_000


@dataclass(frozen=True, slots=True)
class _EndedStream:
    """Both spans of one recorded stream, with times in ns after the start of the round, and its key."""

    key: str
    end_us: int
    client: Span
    server: Span | None
    chunks: int


@dataclass(frozen=True, slots=True)
class _Flush:
    """One second of an engine's steps. ``first``: the number of the first step; ``keys``: those of the streams that finished."""

    at_us: int
    span: Span
    first: int
    steps: int
    keys: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Template:
    """What one engine sends in one round of a recording."""

    length_us: int
    steps: int
    streams: tuple[_EndedStream, ...]
    flushes: tuple[_Flush, ...]


@dataclass(frozen=True, slots=True)
class Event:
    """A span that is ready at a time (ns since the epoch). ``sender``: the process that sends it.

    ``chunks`` are those of a stream, ``steps`` those of a flush. ``is_client``: the span of a client.
    """

    at_ns: int
    sender: str
    span: Span
    chunks: int = 0
    steps: int = 0
    is_client: bool = False


def templates(name: str) -> list[Template]:
    """Return what each engine of a recording sends. ``name`` is one of `demo/recordings`, or a folder. Raises ``FileNotFoundError``."""
    return [_template(name, engine) for engine in engines_of(name)]


def _template(name: str, engine: str) -> Template:
    recording = load(name, engine)
    streams = tuple(_ended(name, stream) for stream in two_sided_streams(name, engine))
    by_second: dict[int, list[int]] = {}
    for number, step in enumerate(recording.steps):
        by_second.setdefault(step.at_us // 1_000_000, []).append(number)
    flushes = tuple(_flush(recording.steps, second, numbers) for second, numbers in sorted(by_second.items()))
    length_us = max(recording.duration_us, *(stream.end_us for stream in streams), *(each.at_us for each in flushes), 0)
    return Template(length_us + _PAUSE_US, len(recording.steps), streams, flushes)


def _ended(name: str, stream: TwoSidedStream) -> _EndedStream:
    sides = {"client": stream.client, "server": stream.server}
    spans: dict[str, Span] = {}
    for vantage, side in sides.items():
        if not side.times_us:
            continue
        timeline, tokens = packed(name, stream.key, vantage, False)
        attributes = {
            "gen_ai.request.model": "",
            "gen_ai.response.id": "",
            "gen_ai.usage.input_tokens": stream.prompt_tokens,
            "gen_ai.usage.output_tokens": tokens,
            "legato.stream.timeline": timeline,
            "legato.stream.vantage": vantage,
            "legato.stream.outcome": stream.outcome,
            "legato.stream.chunks": len(side.times_us),
            "legato.stream.ttfb": side.head_us / 1e6,
            "legato.stream.wire_bytes": side.wire_bytes,
            **({"legato.client.hash": ""} if vantage == "client" else {"legato.engine.id": ""}),
        }
        span = native_span(request(), attributes, start_ns=_LEAD_NS + 1000 * side.start_us, duration_ns=1000 * side.end_us)
        span.kind = Span.SPAN_KIND_CLIENT if vantage == "client" else Span.SPAN_KIND_SERVER
        spans[vantage] = span
    end_us = max(side.start_us + side.end_us for side in sides.values())
    chunks = sum(len(side.times_us) for side in sides.values())
    return _EndedStream(stream.key, end_us, spans["client"], spans.get("server"), chunks)


def _flush(steps: Sequence[EngineStep], second: int, numbers: Sequence[int]) -> _Flush:
    made = [step_record(number, steps[number], _LEAD_NS) for number in numbers]
    ended = [(number, each) for number in numbers for each in steps[number].finished]
    body = steps_request(Engine("", 0), made, [finished_request(number, each, 0) for number, each in ended])
    keys = tuple(each.key for _, each in ended)
    return _Flush(1_000_000 * (second + 1), scope_of(body).spans[0], numbers[0], len(numbers), keys)


class EngineReplay:
    """One engine with its server and its readers. ``number`` seeds it. It begins a round each ``round_us``, and is idle between two.

    ``off_ns``: how far their clocks are ahead.
    """

    def __init__(self, number: int, recorded: Template, begin_ns: int, round_us: int, off_ns: int = 0) -> None:
        self.id = f"engine-{number}:8000"
        self._round_us = max(round_us, recorded.length_us)
        self._template, self._rng = recorded, random.Random(number)
        self._off_ns = off_ns
        self._epoch_ns = begin_ns - 1_000_000_000 + off_ns
        self._number, self._round = number, 0
        # In its first round an engine sends only what follows a random moment.
        self._begin_ns = begin_ns - 1000 * self._rng.randrange(self._round_us)
        self._from_ns = begin_ns
        if self._begin_ns + 1000 * recorded.length_us < begin_ns:
            self._begin_ns += 1000 * self._round_us

    @property
    def streams_per_s(self) -> float:
        """The streams of a second, idle times included."""
        return 1e6 * len(self._template.streams) / self._round_us

    @property
    def next_ns(self) -> int:
        """When the next round begins (ns since the epoch)."""
        return self._begin_ns

    def round(self) -> Iterator[Event]:
        """Yield the spans of the next round in order of time."""
        events = [*self._streams(), *self._flushes()]
        self._round += 1
        self._begin_ns += 1000 * self._round_us
        yield from sorted((each for each in events if each.at_ns >= self._from_ns), key=lambda each: each.at_ns)

    def _streams(self) -> Iterator[Event]:
        for stream in self._template.streams:
            service, model = self._rng.randrange(SERVICES), self._number % MODELS
            reader = hashlib.blake2b(b"%d" % self._rng.randrange(READERS), digest_size=8).hexdigest()
            trace, at_ns = self._rng.randbytes(16), self._begin_ns + 1000 * stream.end_us
            named = {"gen_ai.request.model": f"model-{model}", "gen_ai.response.id": self._response(stream.key)}
            client = self._copy(stream.client, trace, named | {"legato.client.hash": reader})
            yield Event(at_ns, f"service-{service}", client, stream.chunks, is_client=True)
            if stream.server is not None:
                server = self._copy(stream.server, trace, named | {"legato.engine.id": self.id})
                server.parent_span_id = client.span_id
                yield Event(at_ns, f"server {self.id}", server)

    def _flushes(self) -> Iterator[Event]:
        offset = self._round * self._template.steps
        for flush in self._template.flushes:
            span = self._copy(flush.span, b"", {"legato.engine.id": self.id})
            span.trace_id = hashlib.blake2b(self.id.encode(), digest_size=16).digest()
            for attribute in span.attributes:
                name, value = attribute.key, attribute.value
                if name == "legato.engine.epoch":
                    value.int_value = self._epoch_ns
                elif name == "legato.engine.step_first":
                    value.int_value = flush.first + offset
                elif name == "legato.engine.finished.step":
                    for each in value.array_value.values:
                        each.int_value += offset
                elif name == "legato.engine.finished.response_id":
                    for each, key in zip(value.array_value.values, flush.keys, strict=True):
                        each.string_value = self._response(key)
            yield Event(self._begin_ns + 1000 * flush.at_us, f"agent {self.id}", span, steps=flush.steps)

    def _response(self, key: str) -> str:
        return f"chatcmpl-{self._number}-{self._round}-{key}"

    def _copy(self, span: Span, trace: bytes, named: dict[str, str]) -> Span:
        out = Span()
        out.CopyFrom(span)
        out.trace_id, out.span_id = trace, self._rng.randbytes(8)
        out.start_time_unix_nano += self._begin_ns - _LEAD_NS + self._off_ns
        out.end_time_unix_nano += self._begin_ns - _LEAD_NS + self._off_ns
        for attribute in out.attributes:
            if attribute.key in named:
                attribute.value.string_value = named[attribute.key]
        return out


def body_of(sender: str, spans: Sequence[Span]) -> ExportTraceServiceRequest:
    """Return the request in which a process sends these spans."""
    if sender.startswith("agent"):
        body = ExportTraceServiceRequest()
        scope: ScopeSpans = body.resource_spans.add().scope_spans.add()
        scope.scope.name = "legato"
        scope.scope.attributes.add(key="legato.emitter", value=any_value("legato-gpu-agent/0.1.0"))
    else:
        body = request({"service.name": "gateway" if sender.startswith("server") else sender, "service.version": "1.0"})
        scope = scope_of(body)
    scope.spans.extend(spans)
    return body
