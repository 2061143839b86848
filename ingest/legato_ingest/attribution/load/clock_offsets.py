"""Load the offsets between the clocks of engines' records and the clocks of the streams, from requests that both recorded.

All requests that ended around the streams are used, because one run may judge a single stream, and the last send of a single stream may
have waited. `model.clock_offset` computes an offset from the pairs of times.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from legato_ingest.attribution.load.by_engine import Window, Windows, batches_of, span_of
from legato_ingest.attribution.load.due import STREAM_NS_MAX
from legato_ingest.attribution.load.engine_ids import is_one_of
from legato_ingest.attribution.load.streams import clock_of
from legato_ingest.attribution.model.clock_offset import clock_offset
from legato_ingest.attribution.model.scraped import AROUND_NS, EngineKey
from legato_ingest.definitions import CONTENT_KINDS_SQL
from legato_ingest.storage import Store
from legato_ingest.storage.sql import between_ns, unquoted

__all__ = ["ClockOffsets", "RecordedEnds", "clock_offsets"]

# Requests from which the offsets of an engine are computed. More of them do not improve it.
_SAMPLES_MAX = 512
# The times of all chunks are read only where the first content and the gaps between contents do not give the time of the last.
_LAST = """
SELECT tenant, response_id, vantage, clock, service_name, client_address, toUnixTimestamp64Nano(start_time) + {last_ns} AS ended_ns
FROM stream_revs FINAL
WHERE {inside} AND vantage IN ('server', 'client') AND ended AND content_chunks > 0 AND {which} AND (tenant, response_id) IN
    (SELECT tenant, response_id FROM engine_requests WHERE {engines} AND {recorded} AND response_id != '')"""
_IS_KNOWN = "(ttft_us IS NOT NULL AND ttfo_us IS NOT NULL AND gap_sum_us IS NOT NULL)"
_KNOWN_NS = "1000 * toInt64(ttft_us + gap_sum_us)"
_COUNTED_NS = f"1000 * toInt64(arraySum(arraySlice(dt_us, 1, arrayLastIndex(kind -> kind IN {CONTENT_KINDS_SQL}, chunk_kind))))"
_SETTINGS = "SETTINGS do_not_merge_across_partitions_select_final = 1, max_threads = 1"
# The key of the server's clock among those of the clients.
_SERVER = ""


@dataclass(frozen=True, slots=True)
class RecordedEnds:
    """The ends of an engine's requests by its clock: ``recorded_ns`` by response id, all of them in ``recorded``.

    ``streams``: the stretch of time of the streams that are judged, by their clocks.
    """

    recorded_ns: Mapping[str, int]
    recorded: Window
    streams: Window

    def nearest(self) -> dict[str, int]:
        """Return the requests nearest to the middle of all."""
        if len(self.recorded_ns) <= _SAMPLES_MAX:
            return dict(self.recorded_ns)
        middle = (min(self.recorded_ns.values()) + max(self.recorded_ns.values())) // 2
        ordered = sorted(self.recorded_ns.items(), key=lambda item: abs(item[1] - middle))
        return dict(ordered[:_SAMPLES_MAX])

    @property
    def ended(self) -> Window:
        """When the streams of these requests ended, by the clocks of the judged streams."""
        return self.streams[0] - AROUND_NS, self.streams[1] + AROUND_NS


@dataclass(frozen=True, slots=True)
class ClockOffsets:
    """The clock of an engine's records minus other clocks, as in ``model.engine.EngineRecords``."""

    server: tuple[int, int | None] | None = None
    clients: Mapping[str, int] = field(default_factory=dict)


def clock_offsets(store: Store, ends: Mapping[EngineKey, RecordedEnds]) -> dict[EngineKey, ClockOffsets]:
    """Return the offsets of these engines. An engine without requests has none."""
    out = {key: ClockOffsets() for key in ends}
    wanted = {key: each for key, each in ends.items() if each.recorded_ns}
    for batch in batches_of({key: each.ended for key, each in wanted.items()}):
        nearest = {key: wanted[key].nearest() for key in batch}
        samples: dict[EngineKey, dict[str, list[tuple[int, int]]]] = {}
        for key, clock, pair in _pairs(_ended(store, batch, wanted), nearest):
            samples.setdefault(key, {}).setdefault(clock, []).append(pair)
        out.update({key: _offsets(own) for key, own in samples.items()})
    return out


def _ended(store: Store, batch: Windows, ends: Mapping[EngineKey, RecordedEnds]) -> Iterator[tuple[str, str, str, int]]:
    """Yield tenant, response id, clock and time of the last content of the streams of these engines' requests."""
    recorded = span_of({key: ends[key].recorded for key in batch})
    low, high = span_of(batch)
    where = {
        "inside": between_ns("start_time", low - STREAM_NS_MAX, high),
        "engines": is_one_of(batch),
        "recorded": between_ns("recorded_at", *recorded),
    }
    known = _LAST.format(last_ns=_KNOWN_NS, which=_IS_KNOWN, **where)
    counted = _LAST.format(last_ns=_COUNTED_NS, which=f"NOT {_IS_KNOWN} AND notEmpty(dt_us)", **where)
    table = store.select_arrow(f"{known}\nUNION ALL{counted}\n{_SETTINGS}")
    clocks: dict[tuple[bytes, ...], str] = {}
    columns = ("tenant", "response_id", "vantage", "clock", "service_name", "client_address", "ended_ns")
    for tenant, response, vantage, *clock, ended_ns in zip(*(table[name].to_pylist() for name in columns), strict=True):
        seen = (vantage, *clock)
        if seen not in clocks:
            clocks[seen] = _SERVER if unquoted(vantage) == "server" else clock_of(*map(unquoted, clock))
        yield str(unquoted(tenant)), str(unquoted(response)), clocks[seen], int(ended_ns)


def _pairs(
    ended: Iterable[tuple[str, str, str, int]], nearest: Mapping[EngineKey, Mapping[str, int]]
) -> Iterator[tuple[EngineKey, str, tuple[int, int]]]:
    """Yield engine, clock, and both times of each request at each vantage."""
    engines: dict[tuple[str, str], list[EngineKey]] = {}
    for key, recorded_ns in nearest.items():
        for response in recorded_ns:
            engines.setdefault((key[0], response), []).append(key)
    for tenant, response, clock, ended_ns in ended:
        for key in engines.get((tenant, response), ()):
            yield key, clock, (ended_ns, nearest[key][response])


def _offsets(samples: Mapping[str, list[tuple[int, int]]]) -> ClockOffsets:
    offsets = {clock: offset for clock, pairs in samples.items() if (offset := clock_offset(*np.array(pairs, np.int64).T)) is not None}
    server = offsets.pop(_SERVER, None)
    return ClockOffsets(server, {clock: offset for clock, (offset, _) in offsets.items()})
