"""One sweep: judges the stalls of the streams of some time and writes the verdicts.

One idea: a sweep is a function of what the store holds, so it may run again whenever more is known: the newest verdict of a gap counts. It
never touches streams, and it judges in slices of bounded time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from legato_ingest.attribution.counterfactual_rows import replay_rows
from legato_ingest.attribution.load.cpu_wait import waited_beside
from legato_ingest.attribution.load.engines import Engine, engines_of
from legato_ingest.attribution.load.scraped_metrics import Key, Scraped, scraped_of
from legato_ingest.attribution.load.streams import Received, Stream, slices_of, streams_in, verdicts_of
from legato_ingest.attribution.model.charge import Gaps, Verdicts, judge
from legato_ingest.attribution.model.corroborate import lend_words
from legato_ingest.attribution.model.exclusion import MOVED, by_exclusion, excluded_by
from legato_ingest.attribution.model.gaps import gaps_of, made_by
from legato_ingest.attribution.verdict_rows import Judged, verdict_rows
from legato_ingest.errors import StoreUnavailable
from legato_ingest.storage import Store
from legato_ingest.timeline.ragged import Segments

__all__ = ["Swept", "Thresholds", "sweep"]

Ints = NDArray[np.int64]

# Streams in memory at once.
_STREAMS_MAX = 2_000
_NS_MAX = 2**63 - 1


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
    received: Received | None,
    stopping: Callable[[], bool],
    failed: Callable[[Exception], None],
) -> Swept:
    """Judge the client streams that started between these times, ends included; with ``received``, of which a vantage came in that time.

    ``stopping`` is asked between slices: what is left then is left. ``failed`` hears of streams that could not be judged and are left out;
    a store that cannot answer now raises ``StoreUnavailable``.
    """
    swept = Swept()
    gap_us = int(thresholds.gap_ms * 1000)
    for low, high in slices_of(store, max(0, low_ns), min(high_ns, _NS_MAX), gap_us, received, _STREAMS_MAX):
        if stopping():
            break
        streams = streams_in(store, low, high, gap_us, received)
        # A second may hold more streams than a slice should.
        for first in range(0, len(streams), _STREAMS_MAX):
            try:
                _judge(store, streams[first : first + _STREAMS_MAX], thresholds, judged_at_ns, swept)
            except StoreUnavailable:
                raise
            except Exception as error:
                # What fails will fail again, and must not keep all that comes after it from being judged.
                failed(error)
    return swept


def _judge(store: Store, streams: list[Stream], thresholds: Thresholds, judged_at_ns: int, swept: Swept) -> None:
    named, engines = engines_of(store, streams)
    groups: dict[Key | None, list[Stream]] = {}
    for stream in named:
        key = (stream.tenant, stream.engine_id)
        groups.setdefault(key if key in engines and _comparable(stream, engines[key]) else None, []).append(stream)
    for group, members in groups.items():
        engine = engines[group] if group else None
        gaps, owners = _gaps(members, engine, int(thresholds.gap_ms * 1_000_000))
        verdicts = lend_words(gaps, judge(gaps, engine.charges if engine else None), owners, _clocks(members)[owners])
        excluded: list[dict[str, str]] = []
        waited: dict[int, dict[str, int]] = {}
        if group is None:
            places = _places(members, owners)
            scraped = {key: pages for key, pages in scraped_of(store, members).items() if key in places}
            excluded, verdicts = _by_pages(members, owners, gaps, verdicts, scraped, places)
            for key in scraped:
                waited |= waited_beside(store, *key, gaps, verdicts, places[key], by_page=True)
        else:
            waited = waited_beside(store, *group, gaps, verdicts, np.flatnonzero(verdicts.laid))
        stalls = verdicts.excess_ns >= thresholds.excess_ms * 1_000_000
        judged = Judged(members, owners, gaps, verdicts, engine, excluded, waited)
        healthy = _withdrawn(store, judged, np.flatnonzero(~stalls))
        worth = np.flatnonzero(stalls).tolist()
        store.insert("replays", replay_rows(judged, worth, int(thresholds.gap_ms * 1_000_000), judged_at_ns))
        store.insert("verdicts", verdict_rows(judged, worth, healthy, judged_at_ns))
        swept.verdicts += len(worth) + len(healthy)
    swept.streams += len(streams)


def _places(streams: list[Stream], owners: Ints) -> dict[Key, Ints]:
    """Which of the gaps are of each engine's streams."""
    out: dict[Key, list[int]] = {}
    for place, owner in enumerate(owners):
        out.setdefault((streams[owner].tenant, streams[owner].engine_id), []).append(place)
    return {key: np.array(own, np.int64) for key, own in out.items()}


def _by_pages(
    streams: list[Stream], owners: Ints, gaps: Gaps, verdicts: Verdicts, scraped: Mapping[Key, Scraped], places: Mapping[Key, Ints]
) -> tuple[list[dict[str, str]], Verdicts]:
    """What the pages of each stream's engine rule out of its gaps, and the verdicts with a name where they leave one."""
    excluded: list[dict[str, str]] = [{} for _ in owners]
    moved = {cause: np.zeros(len(owners), np.bool_) for cause in MOVED}
    start = np.where(gaps.has_server, gaps.server_start_ns, gaps.start_ns)
    end = np.where(gaps.has_server, gaps.server_end_ns, gaps.end_ns)
    for key, pages in scraped.items():
        rows = places[key]
        here = np.array([bool(boot := streams[owners[row]].server_boot) and boot in pages.boots for row in rows], np.bool_)
        ruled_out, counted = excluded_by(pages, start[rows], end[rows], here)
        for row, each in zip(rows.tolist(), ruled_out, strict=True):
            excluded[row] = each
        for cause, own in counted.items():
            moved[cause][rows] = own
    return excluded, by_exclusion(gaps, verdicts, excluded, moved)


def _clocks(streams: list[Stream]) -> NDArray[np.int64]:
    """A number a clock: streams of the same clock have the same."""
    numbers: dict[tuple[str, str], int] = {}
    return np.array([numbers.setdefault((stream.tenant, stream.clock), len(numbers)) for stream in streams], np.int64)


def _withdrawn(store: Store, judged: Judged, unworthy: NDArray[np.int64]) -> list[int]:
    """Of these gaps, which the store calls stalls: by what was known before."""
    mine = [judged.streams[owner] for owner in judged.owners[unworthy]]
    if not mine:
        return []
    told = verdicts_of(store, mine)
    places = (judged.gaps.start_ns[unworthy] - np.array([stream.start_ns for stream in mine])) // 1000
    keys = [(stream.tenant, stream.trace_id, stream.span_id, int(place)) for stream, place in zip(mine, places, strict=True)]
    return [int(row) for row, key in zip(unworthy, keys, strict=True) if key in told]


def _comparable(stream: Stream, engine: Engine) -> bool:
    """Whether the engine's clock is known beside the server's or, without one, the client's."""
    return stream.clock in engine.client_shift_ns if stream.server is None else engine.shift_ns is not None


def _gaps(streams: list[Stream], engine: Engine | None, gap_ns_min: int) -> tuple[Gaps, NDArray[np.int64]]:
    """The gaps of all streams, end to end, and whose each is."""
    each = []
    for stream in streams:
        server, shift, error, shift_error = stream.server, 0, 0, 0
        if engine is not None and server is not None:
            shift, shift_error = engine.shift_ns or 0, engine.shift_error_ns
        elif engine is not None:
            server = made_by(
                stream.client,
                engine.charges.recorded_ns,
                engine.client_shift_ns[stream.clock],
                engine.last_step.get(stream.response_id, -1),
            )
            error = engine.charges.usual_ns
        each.append(gaps_of(stream.client, server, shift, gap_ns_min, error, shift_error))
    return Gaps.joined(each), Segments.of_lengths(np.array([len(gaps.start_ns) for gaps in each])).owners()
