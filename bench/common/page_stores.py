"""The small store of `bench/page.py`: some thousand streams of the last hours, a judged stream of an engine, and the longest one possible.

All rows go through ingest's own conversion, attribution and rollups. The large store is filled by `store_fill`.
"""

from __future__ import annotations

import pathlib
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from helpers.builders.judging import worker
from helpers.builders.spans import native_span, request
from helpers.builders.world import MS, World
from helpers.builders.world_spans import put, steps, trace_id
from helpers.builders.world_spans import stream as world_stream
from helpers.servers.reading import open_store, stream, streams_in
from legato._timeline import CHUNKS_MAX, pack
from legato_ingest.metrics import Metrics
from legato_ingest.rollups.worker import RollupWorker
from legato_ingest.settings import load as settings
from legato_ingest.storage import Store

__all__ = ["LONG_STEPS", "VANTAGES", "Small", "fill_small"]

Ints = NDArray[np.int64]

STREAMS = 3_000
SPAN_S = 6 * 3_600
LONG_STEPS = 30_000
"""Steps of the engine of the longest stream: ten minutes at 20 ms each."""
VANTAGES = ("client", "gateway", "server")
# Times from the server's send to the receipt at a vantage, and their spread.
_DELAY_US = {"server": (0, 0), "gateway": (150, 50), "client": (400, 300)}
_LONG_ENGINE, _LONG_TRACE, _CLOCK = "engine-long", bytes([99]) * 16, "boot:4026:5000"
_FIRST_US = 400_000
# World's times count from here.
_EPOCH_NS = 10**15


@dataclass(frozen=True)
class Small:
    """What a small store holds: its number of streams, and the trace ids of the ordinary and the longest one."""

    streams: int
    ordinary: str
    others: tuple[str, ...]
    longest: str


def fill_small(path: pathlib.Path, rng: random.Random) -> Small:
    """Fill a new store at ``path``, which must not exist, and judge and roll up its streams."""
    now_ns = time.time_ns()
    # 400 steps, 8 s: two stalls of four streams, each at its client and its server.
    ordinary = World(slow={200: 600 * MS}, prefill={300: 2_000}, offset_ns=now_ns - 3_600 * 10**9 - _EPOCH_NS)
    longest = World(
        steps=LONG_STEPS,
        streams=1,
        slow={step: 600 * MS for step in range(1_500, LONG_STEPS, 3_000)},
        prefill={step: 2_000 for step in range(3_000, LONG_STEPS, 3_000)},
        offset_ns=now_ns - 7_200 * 10**9 - _EPOCH_NS,
    )
    with open_store(path) as store:
        for number in range(ordinary.streams):
            for vantage in ("client", "server"):
                put(store, world_stream(ordinary, vantage, number, _CLOCK), _received(ordinary))
        put(store, steps(ordinary, ordinary.streams), _received(ordinary))
        for vantage in VANTAGES:
            put(store, _long_stream(longest, vantage, rng), _received(longest))
        put(store, steps(longest, 0, engine_id=_LONG_ENGINE), _received(longest))
        _many(store, rng)
        worker(store).step()
        RollupWorker(store, settings(), Metrics()).again(0)
    traces = tuple(trace_id(number).hex() for number in range(ordinary.streams))
    return Small(STREAMS + 2 * ordinary.streams + len(VANTAGES), traces[0], traces[1:], _LONG_TRACE.hex())


def _received(world: World) -> int:
    return int(world.ends[-1]) + 10**9


def _many(store: Store, rng: random.Random) -> None:
    """Client streams over six hours: four services with two models, one stream in ten with a stall of 0.3 to 1 s."""
    for service in range(4):
        made = [_one(f"model-{service % 2}", rng) for _ in range(STREAMS // 4)]
        streams_in(store, made, f"service-{service}", seed=service)


def _one(model: str, rng: random.Random) -> dict[str, Any]:
    gaps = [rng.lognormvariate(3, 0.4) for _ in range(rng.randint(40, 200))]
    if rng.random() < 0.1:
        gaps[len(gaps) // 2] = rng.uniform(300, 1_000)
    attributes = {"gen_ai.request.model": model, "gen_ai.response.id": f"chatcmpl-{rng.getrandbits(64):016x}"}
    return stream(gaps, rng.uniform(150, 900), attributes, age_s=rng.uniform(30, SPAN_S))


def _long_stream(world: World, vantage: str, rng: random.Random) -> Any:
    """The span of the stream with as many chunks as a timeline holds: two or three chunks a step, of three kinds."""
    sent = _long_times(world)
    start_ns = int(sent[0]) // 1_000 * 1_000 - 1_000 * _FIRST_US
    delay_us, spread_us = _DELAY_US[vantage]
    late = np.random.default_rng(3).integers(0, spread_us + 1, len(sent))
    at: Sequence[int] = np.maximum.accumulate((sent - start_ns) // 1_000 + delay_us + late).tolist()
    kinds = [2 if place < len(at) // 4 else 3 if place % 4_000 < 400 else 1 for place in range(len(at))]
    holds = [rng.randrange(40) if rng.random() < 0.2 else 0 for _ in at] if vantage == "client" else None
    attributes = {
        "legato.stream.vantage": vantage,
        "legato.stream.timeline": pack(at, [rng.randint(1, 24) for _ in at], [1] * len(at), kinds, holds),
        "legato.stream.chunks": len(at),
        "legato.stream.clock": _CLOCK,
        "legato.engine.id": _LONG_ENGINE if vantage == "server" else "",
        "gen_ai.response.id": "chatcmpl-longest",
        "gen_ai.usage.output_tokens": len(at),
    }
    body = request({"service.name": "long"})
    native_span(body, attributes, trace_id=_LONG_TRACE, start_ns=start_ns, duration_ns=(at[-1] + 1) * 1_000, rng=random.Random(vantage))
    return body


def _long_times(world: World) -> Ints:
    """Nanoseconds at which the server sent each chunk: those of a step are 2 ms apart."""
    sent = world.server(0).times_ns
    more = CHUNKS_MAX - 2 * len(sent)
    counts = np.full(len(sent), 2) + (np.arange(len(sent)) * more // len(sent) != (np.arange(len(sent)) + 1) * more // len(sent))
    within = np.arange(CHUNKS_MAX) - np.repeat(np.cumsum(counts) - counts, counts)
    return np.asarray(np.repeat(sent, counts) + within * 2 * MS, np.int64)
