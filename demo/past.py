"""The demo's past: recordings dated over the last two weeks, so that dashboards have data from the first minute.

A past stream is a recorded stream with other dates and names. It is sent as the OTLP spans that the SDK and the agent would have sent
then, so `legato serve` handles it like any other. There are three services: `shop`, on two engines, has a KV-cache incident after a
release; `mobile` has a network failure for some minutes; the provider of `search` starts to send two tokens per chunk. The times within a
stream are the recorded ones.
"""

from __future__ import annotations

import hashlib
import random
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from demo.recording import EngineStep, Finished, Recording, TwoSidedStream, load, two_sided_streams
from legato._timeline import pack
from legato_gpu_agent.agent.otlp_spans import Engine, FinishedRequest, Step, steps_request

__all__ = ["Placement", "bodies", "finished_request", "packed", "placements", "send", "step_record"]

_SECOND_NS = 1_000_000_000
_MINUTE_S, _HOUR_S, _DAY_S = 60, 3_600, 86_400
# Streams of `calm` that began before this time overlap with the warm-up of its engine.
_WARM_S = 6.0
_FLUSH_STEPS = 2_000
_SPANS_PER_BODY = 500
_ROLE, _TEXT, _USAGE, _DONE = 0, 1, 4, 7
_USERS = 400


@dataclass(frozen=True, slots=True)
class Placement:
    """A recording dated at a time (ns since the epoch), under the names of a service.

    ``engine_id``: an empty one means that only the client vantage was recorded. ``warm``: omit the streams of the engine's warm-up.
    ``share``: use only every n-th stream. ``pairs``: combine two tokens per chunk.
    """

    name: str
    begin_ns: int
    service: str
    release: str
    model: str
    provider: str
    route: str = "/v1/chat/completions"
    engine_id: str = ""
    warm: bool = False
    share: int = 1
    pairs: bool = False


def placements(now_ns: int, incident: str) -> list[Placement]:
    """Return the past of a demo that begins at ``now_ns``, in order of time.

    The KV-cache incident lasts until now if ``incident`` is ``kv``; otherwise it began two hours ago.
    """
    now_s = now_ns // _SECOND_NS
    kv_begin_s, kv_runs = (now_s - 13 * _MINUTE_S, 9) if incident == "kv" else (now_s - 2 * _HOUR_S, 4)

    def at(ago_s: int) -> int:
        return (now_s - ago_s) * _SECOND_NS

    def shop(name: str, begin_s: int, warm: bool = False) -> Placement:
        release = "1.5.0" if begin_s >= kv_begin_s - 5 * _MINUTE_S else "1.4.2"
        # The engine that runs out of KV cache is the smaller one, which the service uses since the release.
        engine_id = "shop-gpu-1" if name == "kv" else "shop-gpu-0"
        return Placement(name, begin_s * _SECOND_NS, "shop", release, "demo-7b", "vllm", engine_id=engine_id, warm=warm)

    made = [shop("calm", now_s - ago, warm=True) for ago in range(6 * _HOUR_S, 2 * _MINUTE_S, -4 * _MINUTE_S)]
    made += [shop("kv", kv_begin_s + 80 * run) for run in range(kv_runs)]
    for run in range(4):
        ago = 3 * _HOUR_S - run * 2 * _MINUTE_S
        made.append(Placement("net", at(ago), "mobile", "7.0.1", "demo-7b", "vllm", "/v1/mobile", engine_id="mobile-gpu-0"))
    for ago in range(14 * _DAY_S, _HOUR_S, -_HOUR_S):
        made.append(Placement("calm", at(ago), "search", "3.2", "large-2", "tokenhouse", "", warm=True, share=6, pairs=ago < 5 * _DAY_S))
    return sorted(made, key=lambda each: each.begin_ns)


def bodies(made: Sequence[Placement]) -> Iterator[tuple[bytes, int]]:
    """Yield OTLP request bodies of several placements each, with the number of placements done so far."""
    rng = random.Random(5)
    epoch_ns = min(each.begin_ns for each in made) - _SECOND_NS
    body, spans = ExportTraceServiceRequest(), 0
    for number, placement in enumerate(made):
        first_us = int(_WARM_S * 1e6) if placement.warm else 0
        streams = [each for each in two_sided_streams(placement.name) if not placement.warm or each.start_us >= first_us][
            :: placement.share
        ]
        body.MergeFrom(_spans(placement, streams, first_us, number, rng))
        spans += len(streams)
        if placement.engine_id:
            for flush in _steps(placement, _recording(placement.name), first_us, number, epoch_ns):
                body.MergeFrom(flush)
        if spans >= _SPANS_PER_BODY or number + 1 == len(made):
            yield body.SerializeToString(), number + 1
            body, spans = ExportTraceServiceRequest(), 0


def send(otlp: str, made: Sequence[Placement], on_progress: Callable[[int], None]) -> None:
    """Send the placements to `legato serve`; ``on_progress`` receives the number of placements done.

    Raises ``OSError`` if the request fails, and ``RuntimeError`` if a part of it is rejected.
    """
    for body, done in bodies(made):
        request = urllib.request.Request(f"{otlp}/v1/traces", body, {"Content-Type": "application/x-protobuf"})
        with urllib.request.urlopen(request, timeout=120) as reply:
            rejection = reply.read()
        if rejection:
            raise RuntimeError(f"legato serve rejected a part of the demo's past: {rejection[:200]!r}")
        on_progress(done)


@lru_cache(maxsize=8)
def _recording(name: str) -> Recording:
    return load(name)


def _response(number: int, key: str) -> str:
    return f"chatcmpl-past-{number}-{key}"


def _spans(
    placement: Placement, streams: Sequence[TwoSidedStream], first_us: int, number: int, rng: random.Random
) -> ExportTraceServiceRequest:
    body = ExportTraceServiceRequest()
    sides = {"client": _scope(body, placement.service, placement.release)}
    if placement.engine_id:
        sides["server"] = _scope(body, f"{placement.service}-gateway", "2.0")
    for stream in streams:
        trace_id = rng.randbytes(16)
        user = hashlib.blake2b(f"{placement.service}{rng.randrange(_USERS)}".encode(), digest_size=8).hexdigest()
        for vantage, spans in sides.items():
            side = stream.client if vantage == "client" else stream.server
            if not side.times_us:
                continue
            timeline, tokens = packed(placement.name, stream.key, vantage, placement.pairs)
            attributes: dict[str, Any] = {
                "gen_ai.operation.name": "chat",
                "gen_ai.provider.name": placement.provider,
                "gen_ai.request.model": placement.model,
                "gen_ai.request.stream": True,
                "gen_ai.response.id": _response(number, stream.key),
                "gen_ai.usage.input_tokens": stream.prompt_tokens,
                "gen_ai.usage.output_tokens": tokens,
                "legato.stream.timeline": timeline,
                "legato.stream.vantage": vantage,
                "legato.stream.outcome": stream.outcome,
                "legato.stream.ttfb": side.head_us / 1e6,
                "legato.stream.transport": "http/1.1",
                "legato.stream.wire_bytes": side.wire_bytes,
                "legato.client.hash": user,
            }
            attributes |= {"http.route": placement.route} if placement.route else {}
            attributes |= {"legato.engine.id": placement.engine_id} if vantage == "server" else {}
            start_ns = placement.begin_ns + 1000 * (side.start_us - first_us)
            span = spans.add(trace_id=trace_id, span_id=rng.randbytes(8), name=f"chat {placement.model}")
            span.kind = Span.SPAN_KIND_CLIENT if vantage == "client" else Span.SPAN_KIND_SERVER
            span.start_time_unix_nano, span.end_time_unix_nano = start_ns, start_ns + 1000 * side.end_us
            _put(span.attributes, attributes)
    return body


def _scope(body: ExportTraceServiceRequest, service: str, release: str) -> Any:
    resource = body.resource_spans.add()
    _put(resource.resource.attributes, {"service.name": service, "service.version": release})
    scope = resource.scope_spans.add()
    scope.scope.name = "legato"
    _put(scope.scope.attributes, {"legato.emitter": "legato-demo-past/1"})
    return scope.spans


def _put(attributes: Any, values: Mapping[str, Any]) -> None:
    kinds = {bool: "bool_value", int: "int_value", float: "double_value", bytes: "bytes_value", str: "string_value"}
    for key, value in values.items():
        attributes.add(key=key, value=AnyValue(**{kinds[type(value)]: value}))


@lru_cache(maxsize=1024)
def packed(name: str, key: str, vantage: str, pairs: bool) -> tuple[bytes, int]:
    """Return the packed timeline of one side of a recorded stream, and its number of tokens (one per recorded content chunk)."""
    (stream,) = (each for each in two_sided_streams(name) if each.key == key)
    side = stream.client if vantage == "client" else stream.server
    kinds = [_ROLE, *[_TEXT] * (len(side.times_us) - 1)]
    if stream.outcome == "complete" and len(kinds) > 3:
        kinds[-2:] = [_USAGE, _DONE]
    least = min((size for size, kind in zip(side.sizes, kinds, strict=True) if kind == _TEXT), default=0)
    chunks = [(at, size - least + 3 if kind == _TEXT else 0, int(kind == _TEXT), kind) for at, size, kind in _zip(side, kinds)]
    total = sum(tokens for _, _, tokens, _ in chunks)
    if pairs:
        chunks = _paired(chunks)
    times, sizes, tokens, kinds = (list(column) for column in zip(*chunks, strict=True))
    return pack(times, sizes, tokens, kinds), total


def _zip(side: Any, kinds: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    return zip(side.times_us, side.sizes, kinds, strict=True)


def _paired(chunks: list[tuple[int, int, int, int]]) -> list[tuple[int, int, int, int]]:
    """Combine each two consecutive text tokens into one chunk, at the time of the later token."""
    out: list[tuple[int, int, int, int]] = []
    for place, (at, size, tokens, kind) in enumerate(chunks):
        if out and kind == _TEXT == out[-1][3] and out[-1][2] == 1 and place % 2 == 0:
            out[-1] = (at, out[-1][1] + size, out[-1][2] + tokens, kind)
        else:
            out.append((at, size, tokens, kind))
    return out


def _steps(placement: Placement, recording: Recording, first_us: int, number: int, epoch_ns: int) -> Iterator[ExportTraceServiceRequest]:
    engine = Engine(placement.engine_id, epoch_ns)
    steps = [(100_000 * number + place, step) for place, step in enumerate(recording.steps) if step.at_us >= first_us]
    for first in range(0, len(steps), _FLUSH_STEPS):
        flush = steps[first : first + _FLUSH_STEPS]
        steps_sent = [step_record(place, step, placement.begin_ns - 1000 * first_us) for place, step in flush]
        yield steps_request(engine, steps_sent, [finished_request(place, each, number) for place, step in flush for each in step.finished])


def step_record(number: int, step: EngineStep, begin_ns: int) -> Step:
    intervals = [round(interval * 1e6) for interval in step.intervals_s]
    context, context_tokens, decodes, decode_tokens, elapsed_ms = step.work or (None, None, None, None, None)
    return Step(
        number=number,
        recorded_ns=begin_ns + 1000 * step.at_us,
        interval_us=min(intervals, default=None),
        interval_max_us=max(intervals, default=None),
        running=step.running,
        waiting=step.waiting,
        prefill_requests=context,
        prefill_tokens=context_tokens,
        decode_requests=decodes,
        decode_tokens=decode_tokens,
        elapsed_us=None if elapsed_ms is None else round(elapsed_ms * 1000),
        kv_used_ppm=round(step.kv_used * 1e6),
        preempted=step.preempted,
    )


def finished_request(step: int, each: Finished, number: int) -> FinishedRequest:
    return FinishedRequest(
        step=step,
        response_id=_response(number, each.key),
        reason=each.reason,
        preemptions=each.preemptions,
        prompt_tokens=each.prompt_tokens,
        output_tokens=each.output_tokens,
        queued_us=round(each.queued_s * 1e6),
        prefill_us=round(each.prefill_s * 1e6),
        decode_us=round(each.decode_s * 1e6),
    )
