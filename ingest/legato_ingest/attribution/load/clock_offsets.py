"""Load the offsets between the clocks of engines' records and the clocks of the streams, from requests that both recorded.

All requests that ended around the streams are used, because one run may judge a single stream, and the last send of a single stream may
have waited. `model.clock_offset` computes an offset from the pairs of times.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
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
# In these streams every content is a separate read and no gap is open at the end: the sum of the gaps is the time after the first content.
# Gaps are counted between groups of reads that are at most 5 ms apart, so of other streams the times of all chunks are read.
_IS_KNOWN = (
    "ttft_us IS NOT NULL AND ttfo_us IS NOT NULL AND gap_sum_us IS NOT NULL AND gaps + 1 = content_chunks AND ifNull(gap_open_us, 0) = 0"
)
_ENDED = f"""
SELECT
    tenant, response_id, vantage, clock, service_name, client_address, trace_id, span_id, toUnixTimestamp64Nano(start_time) AS start_ns,
    if({_IS_KNOWN}, toInt64(ifNull(ttft_us, 0) + ifNull(gap_sum_us, 0)), -1) AS last_us
FROM stream_revs FINAL
WHERE {{inside}} AND vantage IN ('server', 'client') AND ended AND content_chunks > 0 AND (tenant, response_id) IN
    (SELECT tenant, response_id FROM engine_requests WHERE {{engines}} AND {{recorded}} AND response_id != '')
SETTINGS do_not_merge_across_partitions_select_final = 1, max_threads = 1"""
_COUNTED = f"""
SELECT
    tenant, trace_id, span_id,
    toInt64(arraySum(arraySlice(dt_us, 1, arrayLastIndex(kind -> kind IN {CONTENT_KINDS_SQL}, chunk_kind)))) AS last_us
FROM stream_revs FINAL
PREWHERE {{inside}} AND reinterpretAsUInt64(span_id) IN ({{spans}})
WHERE ended AND notEmpty(dt_us)
SETTINGS do_not_merge_across_partitions_select_final = 1, max_threads = 1"""
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
class _Ended:
    """A stream that ended. ``last_us``: the time from its start to its last content (-1: not known without the times of its chunks)."""

    tenant: bytes
    response_id: bytes
    vantage: bytes
    clock: bytes
    service_name: bytes
    client_address: bytes
    trace_id: bytes
    span_id: bytes
    start_ns: int
    last_us: int


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
        for key, clock, pair in _pairs(_ended(store, batch, wanted, nearest), nearest):
            samples.setdefault(key, {}).setdefault(clock, []).append(pair)
        out.update({key: _offsets(own) for key, own in samples.items()})
    return out


def _ended(
    store: Store, batch: Windows, ends: Mapping[EngineKey, RecordedEnds], nearest: Mapping[EngineKey, Mapping[str, int]]
) -> Iterator[tuple[str, str, str, int]]:
    """Yield tenant, response id, clock and time of the last content of the streams of these engines' ``nearest`` requests."""
    recorded, (low, high) = span_of({key: ends[key].recorded for key in batch}), span_of(batch)
    inside = between_ns("start_time", low - STREAM_NS_MAX, high)
    sql = _ENDED.format(inside=inside, engines=is_one_of(batch), recorded=between_ns("recorded_at", *recorded))
    rows = [_Ended(*values) for values in zip(*store.select_arrow(sql).to_pydict().values(), strict=True)]
    wanted = {(key[0].encode(), response.encode()) for key, own in nearest.items() for response in own}
    rows = [row for row in rows if (row.tenant, row.response_id) in wanted]
    counted = _counted(store, [row for row in rows if row.last_us < 0])
    clocks: dict[tuple[bytes, ...], str] = {}
    for row in rows:
        last_us = row.last_us if row.last_us >= 0 else counted.get((row.tenant, row.trace_id, row.span_id))
        if last_us is None:
            continue
        seen = row.vantage, row.clock, row.service_name, row.client_address
        if seen not in clocks:
            clocks[seen] = _SERVER if row.vantage == b"server" else clock_of(*map(unquoted, seen[1:]))
        yield str(unquoted(row.tenant)), str(unquoted(row.response_id)), clocks[seen], row.start_ns + 1000 * last_us


def _counted(store: Store, rows: Sequence[_Ended]) -> dict[tuple[bytes, bytes, bytes], int]:
    """Return the time (µs) from the start to the last content of streams, from the times of their chunks; by tenant and ids."""
    if not rows:
        return {}
    starts = [row.start_ns for row in rows]
    spans = np.frombuffer(b"".join(row.span_id for row in rows), "<u8").tolist()
    sql = _COUNTED.format(inside=between_ns("start_time", min(starts), max(starts)), spans=",".join(map(str, spans)))
    found = store.select_arrow(sql).to_pydict()
    return dict(zip(zip(found["tenant"], found["trace_id"], found["span_id"], strict=True), found["last_us"], strict=True))


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
