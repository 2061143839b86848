"""Load everything that the store has about some streams, as one value for each group of streams that can be judged together."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from legato_ingest.attribution.load.by_engine import Window
from legato_ingest.attribution.load.cpu_wait import cpu_samples
from legato_ingest.attribution.load.engine_ids import process_key
from legato_ingest.attribution.load.engines import load_engines
from legato_ingest.attribution.load.scraped_metrics import scraped_metrics
from legato_ingest.attribution.load.streams import stored_stalls
from legato_ingest.attribution.model.cpu_wait import CpuSamples
from legato_ingest.attribution.model.engine import EngineRecords
from legato_ingest.attribution.model.judge import Evidence
from legato_ingest.attribution.model.scraped import AROUND_NS, EngineKey
from legato_ingest.attribution.model.vantage import Stream
from legato_ingest.storage import Store

__all__ = ["load_evidence"]

# A chunk may be sent this long after the record of its step, or before it.
_RECORD_LATE_NS = 1_000_000_000


def load_evidence(store: Store, streams: Sequence[Stream]) -> list[Evidence]:
    """Return the evidence about these streams.

    The streams of an engine with known steps are one group, if the offset to their clock is known. All other streams are one group. What
    was scraped of an engine is evidence where its steps explain nothing: without steps, or where their record is not complete.
    """
    named, engines = load_engines(store, streams)
    stored = stored_stalls(store, named)
    groups: dict[EngineKey, list[Stream]] = {}
    others: list[Stream] = []
    for stream in named:
        key = process_key((stream.tenant, stream.engine_id), stream.engine_epoch_ns)
        own = groups.setdefault(key, []) if key in engines and engines[key].covers(stream) else others
        own.append(stream)
    cpu = cpu_samples(store, {key: _sampled(engines[key]) for key in groups})
    # The longest time between tokens says nothing about a gap that has not ended.
    doubtful = [stream for key, own in groups.items() if _lacks_steps(engines[key], own) for stream in own if not stream.is_open]
    scraped = scraped_metrics(store, doubtful)
    out = [
        Evidence(
            members,
            engine=engines[key],
            metrics={key: scraped[key]} if key in scraped else {},
            cpu={key: cpu[key]},
            stored_stalls=stored,
        )
        for key, members in groups.items()
    ]
    if others:
        metrics = scraped_metrics(store, others)
        out.append(Evidence(others, metrics=metrics, cpu=_cpu_by_scrapes(store, others, metrics), stored_stalls=stored))
    return out


def _lacks_steps(engine: EngineRecords, streams: Sequence[Stream]) -> bool:
    """Return whether gaps of these streams may be in no complete step: one has no work in its record, or records are missing."""
    steps = engine.steps
    if np.isnan(steps.decode_requests).any() or (np.diff(steps.number) != 1).any():
        return True
    offset_ns = engine.server_offset[0] if engine.server_offset is not None else max(engine.client_offsets.values(), default=0)
    first, last = min(stream.first_ns for stream in streams), max(stream.last_ns for stream in streams)
    recorded = steps.recorded_ns
    return bool(first + offset_ns < recorded.min() - _RECORD_LATE_NS or last + offset_ns > recorded.max() + _RECORD_LATE_NS)


def _sampled(engine: EngineRecords) -> Window:
    """Return when an engine's host was sampled, as far as its steps need it."""
    first, last = int(engine.steps.recorded_ns.min()), int(engine.steps.recorded_ns.max())
    return first - 2 * AROUND_NS, last + 2 * AROUND_NS


def _cpu_by_scrapes(store: Store, streams: Sequence[Stream], engines: Collection[EngineKey]) -> dict[EngineKey, CpuSamples]:
    """Return the samples of the hosts of these engines over the time of their streams."""
    windows: dict[EngineKey, Window] = {}
    for stream in streams:
        key = stream.tenant, stream.engine_id
        if key in engines:
            low, high = windows.get(key, (stream.first_ns, stream.last_ns))
            windows[key] = min(low, stream.first_ns), max(high, stream.last_ns)
    around = {key: (low - 2 * AROUND_NS, high + 2 * AROUND_NS) for key, (low, high) in windows.items()}
    return cpu_samples(store, around, by_scrapes=True)
