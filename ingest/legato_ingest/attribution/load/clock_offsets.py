"""Load the offsets between the clocks of engines' records and the clocks of the streams, from requests that both recorded.

All requests that ended around the streams are used, because one run may judge a single stream, and the last send of a single stream may
have waited. `model.clock_offset` computes an offset from the pairs of times.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from legato_ingest.attribution.load.by_engine import ENGINE_NS_SPARSE, Window, Windows, batches_of, span_of
from legato_ingest.attribution.load.engine_ids import is_one_of, stored_key
from legato_ingest.attribution.load.learned_offsets import STREAM_NS_MAX
from legato_ingest.attribution.load.streams import clock_of
from legato_ingest.attribution.model.clock_offset import clock_offset
from legato_ingest.attribution.model.scraped import AROUND_NS, EngineKey
from legato_ingest.definitions import CONTENT_KINDS_SQL
from legato_ingest.storage import Store
from legato_ingest.storage.sql import between_ns, integers, quoted_all, unquoted

__all__ = ["ClockOffsets", "RecordedEnds", "clock_offsets"]

Ints = NDArray[np.int64]

# Requests from which the offsets of an engine are computed, and streams of one clock among them, which are those with a timeline to read.
# More of them do not improve it.
_SAMPLES_MAX, _STREAMS_MAX = 512, 128
_ENDED = """
SELECT
    tenant, response_id, vantage, clock, service_name, client_address, trace_id, span_id, toUnixTimestamp64Nano(start_time) AS start_ns
FROM stream_revs FINAL
WHERE {inside} AND vantage IN ({vantages}) AND ended AND outcome = 'complete' AND content_chunks > 0 AND chunks_dropped = 0
    AND (tenant, response_id) IN
    (SELECT tenant, response_id FROM engine_requests WHERE {engines} AND {recorded} AND response_id != '')
SETTINGS do_not_merge_across_partitions_select_final = 1"""
# The chunk of the last step. The end of a sequence is a token without text, so it is the chunk with the finish reason, after the last
# content. At the limit of the length the last content has the finish reason; usage and end mark follow, which a server may send late, and
# which a client that holds each chunk reads late. A finish reason in a chunk apart has another chunk behind it.
_USAGE, _HEARTBEAT, _DONE = 4, 5, 7
_FINISHED = f"""
WITH
    arrayLastIndex(kind -> kind IN {CONTENT_KINDS_SQL}, chunk_kind) AS content,
    arraySlice(chunk_kind, content + 1) AS rest,
    arrayFirstIndex(kind -> kind != {_HEARTBEAT}, rest) AS next,
    rest[next] = {_DONE} AND next < length(rest) AS is_apart,
    next = 0 OR rest[next] = {_USAGE} OR lower(finish_reason) IN ('length', 'max_tokens', 'max_output_tokens') AS is_content
SELECT
    tenant, trace_id, span_id, toInt64(arraySum(arraySlice(dt_us, 1, content + if(is_content AND NOT is_apart, 0, next)))) AS finished_us
FROM stream_revs FINAL
PREWHERE {{inside}} AND reinterpretAsUInt64(span_id) IN ({{spans}})
WHERE ended AND notEmpty(dt_us)
SETTINGS do_not_merge_across_partitions_select_final = 1"""
# The key of the server's clock among those of the clients.
_SERVER = ""
_CLOCK = ("vantage", "clock", "service_name", "client_address")
_IDS = ("tenant", "trace_id", "span_id")


@dataclass(frozen=True, slots=True)
class RecordedEnds:
    """The ends of an engine's requests by its clock: ``recorded_ns`` by response id, all of them in ``recorded``.

    ``streams``: the stretch of time of the streams that are judged, by their clocks. ``clients``: the clocks of those without a server; no
    other client's offset is of use.
    """

    recorded_ns: Mapping[str, int]
    recorded: Window
    streams: Window
    clients: frozenset[str] = frozenset()

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
    for batch in batches_of({key: each.ended for key, each in wanted.items()}, ENGINE_NS_SPARSE):
        ended = _ended(store, batch, wanted)
        if ended.num_rows:
            requests = _Requests.of({key: wanted[key].nearest() for key in batch})
            out.update(_offsets(store, requests, ended, [wanted[key].clients | {_SERVER} for key in batch]))
    return out


def _ended(store: Store, batch: Windows, ends: Mapping[EngineKey, RecordedEnds]) -> pa.Table:
    """Return the streams of these engines' requests."""
    recorded, (low, high) = span_of({key: ends[key].recorded for key in batch}), span_of(batch)
    inside = between_ns("start_time", low - STREAM_NS_MAX, high)
    engines = is_one_of({stored_key(key) for key in batch})
    vantages = quoted_all(("server", "client") if any(ends[key].clients for key in batch) else ("server",))
    return store.select_arrow(
        _ENDED.format(inside=inside, vantages=vantages, engines=engines, recorded=between_ns("recorded_at", *recorded))
    )


@dataclass(frozen=True, slots=True)
class _Requests:
    """Requests of several engines: the distinct ``names`` (tenant and response id), and for each request the index of its name, the index
    of its engine in ``engines``, and the time of its record. They are in the order of the names.
    """

    engines: Sequence[EngineKey]
    names: pa.Array
    name: Ints
    engine: Ints
    recorded_ns: Ints

    @classmethod
    def of(cls, recorded_ns: Mapping[EngineKey, Mapping[str, int]]) -> _Requests:
        """Return the requests of these engines, by response id."""
        engines = list(recorded_ns)
        names = [f"{key[0]}\0{response}".encode() for key in engines for response in recorded_ns[key]]
        encoded = pc.dictionary_encode(pa.array(names, pa.binary()))
        name = np.asarray(encoded.indices.to_numpy(zero_copy_only=False), np.int64)
        order = np.argsort(name, kind="stable")
        engine = np.repeat(np.arange(len(engines)), [len(recorded_ns[key]) for key in engines])
        times = np.array([at for key in engines for at in recorded_ns[key].values()], np.int64)
        return cls(engines, encoded.dictionary, name[order], engine[order], times[order])

    def joined(self, ended: pa.Table) -> tuple[Ints, Ints]:
        """Return the pairs of a stream and its request, as the indices of both. Several engines may have a request of the same name."""
        names = pc.binary_join_element_wise(*(ended[name].cast(pa.binary()) for name in ("tenant", "response_id")), b"\0")
        name = np.asarray(pc.fill_null(pc.index_in(names, self.names), -1).to_numpy(), np.int64)
        first, last = (np.searchsorted(self.name, name, side) for side in ("left", "right"))
        counts = np.where(name >= 0, last - first, 0)
        streams = np.repeat(np.arange(len(name)), counts)
        within = np.arange(len(streams)) - np.repeat(np.cumsum(counts) - counts, counts)
        return streams, np.repeat(first, counts) + within


def _offsets(store: Store, requests: _Requests, ended: pa.Table, wanted: Sequence[Collection[str]]) -> dict[EngineKey, ClockOffsets]:
    """Return the offset of each engine to each clock that is ``wanted`` of it."""
    streams, records = requests.joined(ended)
    clocks, clock = _clocks(ended)
    group = requests.engine[records] * len(clocks) + clock[streams]
    order = np.argsort(group, kind="stable")
    present, starts = np.unique(group[order], return_index=True)
    parts: dict[tuple[int, str], Ints] = {}
    for code, own in zip(present.tolist(), np.split(order, starts[1:]) if len(order) else (), strict=True):
        engine, name = code // len(clocks), clocks[code % len(clocks)]
        if name in wanted[engine]:
            parts[engine, name] = _some(own)
    finished_ns = _finished_ns(store, ended, np.unique(streams[np.concatenate(list(parts.values()))])) if parts else streams
    found: dict[EngineKey, dict[str, tuple[int, int | None]]] = {}
    for (engine, name), own in parts.items():
        known = own[finished_ns[streams[own]] >= 0]
        offset = clock_offset(finished_ns[streams[known]], requests.recorded_ns[records[known]])
        if offset is not None:
            found.setdefault(requests.engines[engine], {})[name] = offset
    return {key: ClockOffsets(own.pop(_SERVER, None), {clock: offset for clock, (offset, _) in own.items()}) for key, own in found.items()}


def _some(rows: Ints) -> Ints:
    """Return these rows or, of more than are needed, some at equal distances."""
    return rows if len(rows) <= _STREAMS_MAX else rows[np.linspace(0, len(rows) - 1, _STREAMS_MAX).astype(np.int64)]


def _finished_ns(store: Store, ended: pa.Table, rows: Ints) -> Ints:
    """Return when the last step of each stream was sent, or arrived, by its clock; -1: not read, or unknown. ``rows``: those to read."""
    own = ended.take(rows)
    start_ns = np.asarray(own["start_ns"].to_numpy(), np.int64)
    spans = integers(np.frombuffer(b"".join(own["span_id"].to_pylist()), "<u8"))
    inside = between_ns("start_time", int(start_ns.min()), int(start_ns.max()))
    found = store.select_arrow(_FINISHED.format(inside=inside, spans=spans))
    by_id = dict(zip(_ids(found), found["finished_us"].to_pylist(), strict=True))
    finished_us = np.array([by_id.get(each, -1) for each in _ids(own)], np.int64)
    out = np.full(ended.num_rows, -1, np.int64)
    out[rows] = np.where(finished_us >= 0, start_ns + 1_000 * finished_us, -1)
    return out


def _ids(rows: pa.Table) -> Iterator[tuple[bytes, ...]]:
    return zip(*(rows[name].to_pylist() for name in _IDS), strict=True)


def _clocks(ended: pa.Table) -> tuple[list[str], Ints]:
    """Return the keys of the streams' clocks, and for each stream the index of its clock."""
    kinds = ended.group_by(list(_CLOCK)).aggregate([])
    keys = [
        _SERVER if vantage == b"server" else clock_of(*map(unquoted, own))
        for vantage, *own in zip(*(kinds[name].to_pylist() for name in _CLOCK), strict=True)
    ]
    distinct = list(dict.fromkeys(keys))
    joined = (pc.binary_join_element_wise(*(each[name].cast(pa.binary()) for name in _CLOCK), b"\0") for each in (ended, kinds))
    of_stream, of_kind = (each.combine_chunks() for each in joined)
    place = np.array([distinct.index(key) for key in keys], np.int64)
    return distinct, place[np.asarray(pc.index_in(of_stream, of_kind).to_numpy(), np.int64)]
