"""Load everything that the store has about some streams, as one value for each group of streams that can be judged together."""

from __future__ import annotations

from collections.abc import Collection, Sequence

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


def load_evidence(store: Store, streams: Sequence[Stream]) -> list[Evidence]:
    """Return the evidence about these streams.

    The streams of an engine with known steps are one group, if the offset to their clock is known. All other streams are one group.
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
    out = [Evidence(members, engine=engines[key], cpu={key: cpu[key]}, stored_stalls=stored) for key, members in groups.items()]
    if others:
        metrics = scraped_metrics(store, others)
        out.append(Evidence(others, metrics=metrics, cpu=_cpu_by_scrapes(store, others, metrics), stored_stalls=stored))
    return out


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
