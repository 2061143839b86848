"""One sweep: judges the stalls of the streams of some time and writes the verdicts.

One idea: a sweep is a function of what the store holds, so it may run again whenever more is known: the newest verdict of a gap counts. It
never touches streams, and it judges in slices of bounded time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from legato_ingest.attribution.engines import Engine, engines_of
from legato_ingest.attribution.evidence import Received, Stream, slices_of, streams_in
from legato_ingest.attribution.pairs import gaps_of, made_by
from legato_ingest.attribution.stalls import CAUSES, Gaps, Verdicts, judge
from legato_ingest.store import Store

__all__ = ["Swept", "Thresholds", "sweep"]

# Streams in memory at once.
_STREAMS_MAX = 2_000
_NS_MAX = 2**63 - 1
# Causes that follow from a sum of records of one clock, those that follow from the release pattern, and those that are what is left.
_CONFIDENCE = {
    "consumer": "proven",
    "scheduling": "strong",
    "kv_pressure": "strong",
    "host": "strong",
    "front_end": "strong",
    "generation": "strong",
    "delivery": "likely",
    "coalescing": "strong",
    "slow_reader": "strong",
    "connection": "likely",
    "mixed": "strong",
}


@dataclass(frozen=True, slots=True)
class Thresholds:
    """What is judged: gaps of at least ``gap_ms`` of which at least ``excess_ms`` is beyond the healthy step."""

    gap_ms: float = 250.0
    excess_ms: float = 50.0


@dataclass(slots=True)
class Swept:
    """What a sweep did."""

    streams: int = 0
    verdicts: int = 0


def sweep(
    store: Store,
    low_ns: int,
    high_ns: int,
    thresholds: Thresholds,
    judged_at_ns: int,
    received: Received | None = None,
    stopping: Callable[[], bool] = lambda: False,
) -> Swept:
    """Judge the client streams that started between these times, ends included; with ``received``, of which a vantage came in that time.

    ``stopping`` is asked between slices: what is left then is left.
    """
    swept = Swept()
    gap_us = int(thresholds.gap_ms * 1000)
    for low, high in slices_of(store, max(0, low_ns), min(high_ns, _NS_MAX), gap_us, received, _STREAMS_MAX):
        if stopping():
            break
        streams = streams_in(store, low, high, gap_us, received)
        if streams:
            _judge(store, streams, thresholds, judged_at_ns, swept)
    return swept


def _judge(store: Store, streams: list[Stream], thresholds: Thresholds, judged_at_ns: int, swept: Swept) -> None:
    named, engines = engines_of(store, streams)
    groups: dict[tuple[str, str] | None, list[Stream]] = {}
    for stream in named:
        key = (stream.tenant, stream.engine_id)
        groups.setdefault(key if key in engines and _comparable(stream, engines[key]) else None, []).append(stream)
    for group, members in groups.items():
        engine = engines[group] if group else None
        gaps, owners = _gaps(members, engine, int(thresholds.gap_ms * 1_000_000))
        verdicts = judge(gaps, engine.charges if engine else None)
        worth = verdicts.excess_ns >= thresholds.excess_ms * 1_000_000
        rows = _rows(members, owners, gaps, verdicts, np.flatnonzero(worth), judged_at_ns)
        store.insert("verdicts", rows)
        swept.verdicts += rows.num_rows
    swept.streams += len(streams)


def _comparable(stream: Stream, engine: Engine) -> bool:
    """Whether the engine's clock is known beside the server's or, without one, the client's."""
    return stream.clock in engine.client_shift_ns if stream.server is None else engine.shift_ns is not None


def _gaps(streams: list[Stream], engine: Engine | None, gap_ns_min: int) -> tuple[Gaps, NDArray[np.int64]]:
    """The gaps of all streams, end to end, and whose each is."""
    each = []
    for stream in streams:
        server, shift = stream.server, 0
        if engine is not None and server is not None:
            shift = engine.shift_ns or 0
        elif engine is not None:
            at = np.flatnonzero(engine.charges.number == engine.last_step.get(stream.response_id, -1))
            server = made_by(
                stream.client,
                engine.charges.end_ns + engine.charges.late_ns,
                engine.client_shift_ns[stream.clock],
                int(at[-1]) if len(at) else -1,
            )
        each.append(gaps_of(stream.client, server, shift, gap_ns_min))
    joined = Gaps(*(np.concatenate([getattr(gaps, field.name) for gaps in each]) for field in fields(Gaps)))
    return joined, np.repeat(np.arange(len(streams)), [len(gaps.start_ns) for gaps in each])


def _rows(
    streams: list[Stream], owners: NDArray[np.int64], gaps: Gaps, verdicts: Verdicts, at: NDArray[np.int64], judged_at_ns: int
) -> pa.Table:
    mine = [streams[owner] for owner in owners[at]]
    starts = np.array([stream.start_ns for stream in mine], np.int64)
    causes = [CAUSES[cause] if cause >= 0 else "mixed" for cause in verdicts.cause[at]]
    steps = {"step_first": verdicts.step_first[at], "step_last": verdicts.step_last[at]}
    parts = [{name: int(ns) for name, ns in zip(CAUSES, row, strict=True) if ns} for row in verdicts.parts[at]]
    columns = {
        "tenant": pa.array([stream.tenant for stream in mine], pa.string()),
        "start_time": pa.array(starts, pa.timestamp("ns", "UTC")),
        "trace_id": pa.array([stream.trace_id for stream in mine], pa.binary(16)),
        "span_id": pa.array([stream.span_id for stream in mine], pa.binary(8)),
        "gap_start_us": pa.array(((gaps.start_ns[at] - starts) // 1000).astype(np.uint64)),
        "gap_us": pa.array(((gaps.end_ns[at] - gaps.start_ns[at]) // 1000).astype(np.uint64)),
        "excess_us": pa.array((verdicts.excess_ns[at] // 1000).astype(np.uint64)),
        "judged_at": pa.array(np.full(len(at), judged_at_ns // 1_000_000), pa.timestamp("ms", "UTC")),
        "cause": pa.array(causes, pa.string()),
        "confidence": pa.array([_confidence(stream, cause) for stream, cause in zip(mine, causes, strict=True)], pa.string()),
        "share": pa.array(verdicts.share[at].astype(np.float32)),
        "parts": pa.array([list(each.items()) for each in parts], pa.map_(pa.string(), pa.int64())),
        "engine_id": pa.array([stream.engine_id for stream in mine], pa.string()),
        "missing": pa.array(
            [_missing(stream, first) for stream, first in zip(mine, steps["step_first"], strict=True)], pa.list_(pa.string())
        ),
    }
    for name, values in steps.items():
        columns[name] = pa.array(np.maximum(values, 0).astype(np.uint64), mask=values < 0)
    return pa.table(columns)


def _confidence(stream: Stream, cause: str) -> str:
    """Weaker without the server: which step made a chunk is then concluded, not recorded."""
    said = _CONFIDENCE.get(cause, "unknown")
    return "likely" if said == "strong" and stream.server is None else said


def _missing(stream: Stream, step_first: int) -> list[str]:
    """The vantages that the verdict had to do without."""
    return [name for name, absent in (("server", stream.server is None), ("engine", step_first < 0)) if absent]
