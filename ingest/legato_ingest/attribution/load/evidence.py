"""Load everything that the store has about some streams, as one value for each group of streams that can be judged together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from legato_ingest.attribution.load.cpu_wait import cpu_samples
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


def load_evidence(store: Store, streams: Sequence[Stream]) -> list[Evidence]:
    """Return the evidence about these streams.

    The streams of an engine with known steps are one group, if the offset to their clock is known. All other streams are one group.
    """
    named, engines = load_engines(store, streams)
    stored = stored_stalls(store, named)
    groups: dict[EngineKey | None, list[Stream]] = {}
    for stream in named:
        key = (stream.tenant, stream.engine_id)
        groups.setdefault(key if key in engines and engines[key].covers(stream) else None, []).append(stream)
    out = []
    for group, members in groups.items():
        if group is None:
            metrics = scraped_metrics(store, members)
            out.append(Evidence(members, metrics=metrics, cpu=_cpu_by_scrapes(store, members, metrics), stored_stalls=stored))
        else:
            cpu = {group: _cpu_by_steps(store, group, engines[group])}
            out.append(Evidence(members, engine=engines[group], cpu=cpu, stored_stalls=stored))
    return out


def _cpu_by_steps(store: Store, key: EngineKey, engine: EngineRecords) -> CpuSamples:
    """Return the samples of an engine's host over the time of its steps."""
    first, last = int(engine.steps.recorded_ns.min()), int(engine.steps.recorded_ns.max())
    return cpu_samples(store, key, first - 2 * AROUND_NS, last + 2 * AROUND_NS)


def _cpu_by_scrapes(store: Store, streams: Sequence[Stream], engines: Mapping[EngineKey, object]) -> dict[EngineKey, CpuSamples]:
    """Return the samples of the hosts of these engines over the time of their streams."""
    out = {}
    for key in engines:
        own = [stream for stream in streams if (stream.tenant, stream.engine_id) == key]
        low, high = min(stream.first_ns for stream in own), max(stream.last_ns for stream in own)
        out[key] = cpu_samples(store, key, low - 2 * AROUND_NS, high + 2 * AROUND_NS, by_scrapes=True)
    return out
