"""Load streams to judge: clients with a long gap, and the same streams at their servers; and servers with a long gap without a client.

The streams of a stretch of time are loaded in pieces of bounded memory. The columns arrive as Arrow arrays, so Python handles streams and
never single chunks.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from legato_ingest.attribution.load.due import Due
from legato_ingest.attribution.load.learned_offsets import CLOCKS_APART_NS
from legato_ingest.attribution.load.other_calls import KNOWS_CHUNKS, OF_OTHER_CALLS
from legato_ingest.attribution.load.servers import Client, Found, client_of, found_servers, key_of
from legato_ingest.attribution.model.gaps import GAPS_MAX
from legato_ingest.attribution.model.judge import GapKey
from legato_ingest.attribution.model.vantage import SocketSamples, Stream, Vantage
from legato_ingest.causes import HEALTHY, sql_list
from legato_ingest.definitions import OPEN_ENDED
from legato_ingest.storage import Store
from legato_ingest.storage.sql import between_ns, integers, quoted, quoted_all, unquoted

__all__ = ["Most", "Size", "clock_of", "sizes_of", "slices_of", "stored_stalls", "streams_in"]

Row = dict[str, Any]
Ints = NDArray[np.int64]

_TEXTS = ("tenant", "vantage", "response_id", "engine_id", "clock", "service_name", "client_address", "provider", "server_address")
_ARRAYS = ("dt_us", "chunk_kind", "chunk_bytes", "chunk_hold_64us")
_SOCKET_ARRAYS = ("at", "queued_bytes", "window_bytes", "idle_ms")
_STREAMS = f"""
SELECT
    tenant, toUnixTimestamp64Nano(start_time) AS start_ns, trace_id, span_id, vantage, response_id, engine_id, clock, service_name,
    client_address, provider, server_address, server_port,
    NOT ended OR chunks_dropped > 0 OR outcome IN {sql_list(sorted(OPEN_ENDED))} AS is_cut, {", ".join(_ARRAYS)}
FROM stream_revs FINAL
PREWHERE {{inside}}
WHERE {{which}}
ORDER BY start_time, span_id
SETTINGS do_not_merge_across_partitions_select_final = 1"""
_SOCKETS = f"""
SELECT tenant, trace_id, span_id, {", ".join(_SOCKET_ARRAYS)} FROM stream_sockets FINAL
WHERE {{inside}}"""
_CLIENTS = f"""
SELECT DISTINCT tenant, trace_id FROM stream_revs
WHERE {{inside}} AND {KNOWS_CHUNKS} AND trace_id IN ({{traces}})"""
# Start, span and trace of a row, of 32 bytes each, as one string: ClickHouse parses it some ten times faster than a list of expressions.
_THREE_IDS = """
SELECT reinterpretAsInt64(substring(id, 1, 8)), reinterpretAsUInt64(substring(id, 9, 8)), toFixedString(substring(id, 17, 16), 16)
FROM (SELECT substring(unhex('{digits}'), 1 + 32 * number, 32) AS id FROM numbers({count}))"""
# The memory of a chunk and of its like at the server while the stream is judged, and that of a stall until its row is in the store, both
# measured. The time in gaps bounds the number of those that can be stalls.
_CHUNK_BYTES, _STALL_BYTES = 106, 2_000
_SIZE = f"""toInt64(count()) AS streams,
    toInt64(sum({_CHUNK_BYTES} * recorded
        + {_STALL_BYTES} * least({GAPS_MAX}, recorded, intDiv(ifNull(gap_sum_us, 0), {{gap_us_min}})))) AS bytes"""
_SECONDS = f"""
WITH toUInt64(ifNull(chunks, 0)) AS recorded
SELECT toInt64(intDiv(toUnixTimestamp64Nano(start_time), 1000000000)) AS second, {_SIZE}
FROM stream_revs
WHERE {{inside}} AND {{which}}
GROUP BY second ORDER BY second"""
_SECOND_NS = 1_000_000_000
_SLICE_NS_MAX = 300 * _SECOND_NS
_TENANTS = f"""
WITH toUInt64(ifNull(chunks, 0)) AS recorded
SELECT tenant, {_SIZE}, toInt64(uniqExact(intDiv(toUnixTimestamp64Nano(start_time), {_SLICE_NS_MAX}))) AS slices
FROM stream_revs
WHERE {{inside}} AND {{which}}
GROUP BY tenant ORDER BY bytes, tenant"""
_HASH = f"sipHash64Keyed((toUInt64({secrets.randbits(63)}), toUInt64({secrets.randbits(63)})), tenant, start_time, trace_id, span_id)"
_STORED = f"""
SELECT tenant, trace_id, span_id, gap_start_us FROM verdicts FINAL
WHERE {{inside}} AND reinterpretAsUInt64(span_id) IN ({{spans}}) AND trace_id IN ({{traces}}) AND cause != '{HEALTHY}'"""


@dataclass(frozen=True, slots=True)
class Most:
    """What is in memory at once at most: so many streams, and about so many bytes of them and of their verdicts."""

    streams: int
    bytes: int


class Size(NamedTuple):
    """How much due streams are: their number, the bytes that they take while they are judged, and the slices by their start alone."""

    streams: int = 0
    bytes: int = 0
    slices: int = 0

    def plus(self, other: Size) -> Size:
        """Return the size of both together."""
        return Size(*(own + more for own, more in zip(self, other, strict=True)))


def slices_of(store: Store, due: Due, gap_us_min: int, most: Most) -> list[Due]:
    """Divide due streams into slices with about ``most`` of them each: by their start, those of one second by tenant and hash."""
    sql = _SECONDS.format(inside=due.inside, which=_is_due(due, gap_us_min), gap_us_min=max(1, gap_us_min))
    table = store.select_arrow(sql)
    out: list[Due] = []
    streams = size = 0
    for second, more_streams, more in zip(*(table[name].to_pylist() for name in ("second", "streams", "bytes")), strict=True):
        low, high = max(due.low_ns, second * _SECOND_NS), min(due.high_ns, (second + 1) * _SECOND_NS - 1)
        is_more = more_streams > most.streams or more > most.bytes
        streams, size = streams + more_streams, size + more
        if out and not is_more and streams <= most.streams and size <= most.bytes and low - out[-1].low_ns < _SLICE_NS_MAX:
            out[-1] = replace(out[-1], high_ns=high)
            continue
        own = replace(due, low_ns=low, high_ns=high)
        out += _parts_of(store, own, gap_us_min, most) if is_more else [own]
        # No second is added to the parts of one.
        streams, size = (more_streams, more) if not is_more else (most.streams, most.bytes)
    return out


def sizes_of(store: Store, due: Due, gap_us_min: int) -> dict[str, Size]:
    """Return, by tenant, how much the due streams are."""
    sql = _TENANTS.format(inside=due.inside, which=_is_due(due, gap_us_min), gap_us_min=max(1, gap_us_min))
    return {str(unquoted(name)): Size(*map(int, numbers)) for name, *numbers in store.select(sql)}


def _parts_of(store: Store, due: Due, gap_us_min: int, most: Most) -> list[Due]:
    """Divide due streams of one second: tenants that fit together, and those of a larger tenant by a keyed hash.

    No sender can bring many streams into one part, and none divides the streams of another tenant.
    """
    which, groups, streams, size = list[str](), list[list[str]](), 0, 0
    for tenant, (more_streams, more, _) in sizes_of(store, due, gap_us_min).items():
        if more_streams > most.streams or more > most.bytes:
            parts = min(more_streams, max(-(-more_streams // most.streams), -(-more // most.bytes)))
            which += [f"tenant = {quoted(tenant)} AND {_HASH} % {parts} = {number}" for number in range(parts)]
        elif groups and streams + more_streams <= most.streams and size + more <= most.bytes:
            groups[-1].append(tenant)
            streams, size = streams + more_streams, size + more
        else:
            groups.append([tenant])
            streams, size = more_streams, more
    which += [f"tenant IN ({quoted_all(group)})" for group in groups]
    return [due.only(each) for each in which]


def streams_in(store: Store, due: Due, gap_us_min: int, most: Most) -> Iterator[list[Stream]]:
    """Yield the due client streams with a gap of this length, each with the vantage of its server, and such streams at servers without
    a client. They come in one piece, unless the servers take more than ``most.bytes``.

    `load.servers` says which server is a client's. A server is without a client if its trace has none, or none of its call.
    """
    table = store.select_arrow(_STREAMS.format(inside=due.inside, which=_is_due(due, gap_us_min)))
    rows = list(_rows(table))
    clients, servers = ([row for row in rows if row["vantage"] == vantage] for vantage in ("client", "server"))
    by_key = {key_of(row): row for row in servers if row["response_id"]}
    alone = [_stream(row, row, None) for row in _without_client(store, due, servers, clients)]
    sockets = _sockets_in(store, due, clients) if clients else {}
    found = found_servers(store, due, [row for row in clients if key_of(row) not in by_key])
    for part in _parts_by_server(clients, found, most):
        loaded = _loaded(store, {server for row in part if (server := found.get(client_of(row))) is not None})
        servers_of = (by_key.get(key_of(row)) or loaded.get(found.get(client_of(row))) for row in part)
        sockets_of = (sockets.get((row["tenant"], row["trace_id"], row["span_id"])) for row in part)
        yield [*map(_stream, part, servers_of, sockets_of), *alone]
        alone = []
    if alone:
        yield alone


def _parts_by_server(clients: Sequence[Row], found: Mapping[Client, Found], most: Most) -> Iterator[Sequence[Row]]:
    """Divide clients so that the chunks of their servers take ``most.bytes`` at most."""
    servers = (found.get(client_of(row)) for row in clients)
    sizes = np.cumsum([_CHUNK_BYTES * server.chunks if server is not None else 0 for server in servers])
    starts = np.flatnonzero(np.diff(sizes // most.bytes, prepend=-1)).tolist() if len(clients) else []
    for first, last in pairwise([*starts, len(clients)]):
        yield clients[first:last]


def _loaded(store: Store, servers: Collection[Found]) -> dict[Found | None, Row]:
    """Return the rows of these servers."""
    if not servers:
        return {}
    starts = [each.start_ns for each in servers]
    ids = b"".join(each.start_ns.to_bytes(8, "little") + each.span.to_bytes(8, "little") + each.trace_id for each in servers)
    three_ids = _THREE_IDS.format(digits=ids.hex(), count=len(servers))
    inside = (
        f"{between_ns('start_time', min(starts), max(starts))} AND tenant IN ({quoted_all(sorted({each.tenant for each in servers}))})"
        f" AND (toUnixTimestamp64Nano(start_time), reinterpretAsUInt64(span_id), trace_id) IN ({three_ids})"
    )
    rows = _rows(store.select_arrow(_STREAMS.format(inside=inside, which="vantage = 'server'")))
    by_id = {(row["tenant"], row["trace_id"], row["start_ns"], int.from_bytes(row["span_id"], "little")): row for row in rows}
    return {each: row for each in servers if (row := by_id.get(each[:4])) is not None}


def _traces_with_client(store: Store, due: Due, servers: Sequence[Row]) -> set[tuple[str, bytes]]:
    """Return the traces (tenant, trace id) of these servers in which a client was recorded, finished or not."""
    if not servers:
        return set()
    traces = quoted_all(sorted({row["trace_id"] for row in servers}))
    table = store.select_arrow(_CLIENTS.format(inside=due.started(CLOCKS_APART_NS), traces=traces))
    return {(unquoted(tenant), trace) for tenant, trace in zip(table["tenant"].to_pylist(), table["trace_id"].to_pylist(), strict=True)}


def _without_client(store: Store, due: Due, servers: Sequence[Row], clients: Sequence[Row]) -> list[Row]:
    """Return those of these servers that have no client. ``clients``: those that were loaded with them."""
    traces = _traces_with_client(store, due, servers)
    of_clients = {key_of(row) for row in clients}
    is_alone = [(row["tenant"], row["trace_id"]) not in traces for row in servers]
    named = [
        row for row, alone in zip(servers, is_alone, strict=True) if not alone and row["response_id"] and key_of(row) not in of_clients
    ]
    others = _of_other_calls(store, due, named)
    return [
        row for row, alone in zip(servers, is_alone, strict=True) if alone or (row["tenant"], row["trace_id"], row["span_id"]) in others
    ]


def _of_other_calls(store: Store, due: Due, servers: Sequence[Row]) -> set[tuple[str, bytes, bytes]]:
    """Return those of these servers (tenant, trace, span) that are those of no client of their trace."""
    if not servers:
        return set()
    tenants, traces = (quoted_all(sorted({row[name] for row in servers})) for name in ("tenant", "trace_id"))
    which = f"tenant IN ({tenants}) AND trace_id IN ({traces})"
    spans = integers(np.unique(np.frombuffer(b"".join(row["span_id"] for row in servers), "<u8")))
    sql = OF_OTHER_CALLS.format(around=due.started(CLOCKS_APART_NS), traces=which)
    table = store.select_arrow(f"{sql} AND reinterpretAsUInt64(span_id) IN ({spans})")
    columns = (table[name].to_pylist() for name in ("tenant", "trace_id", "span_id"))
    return {(unquoted(tenant), trace, span) for tenant, trace, span in zip(*columns, strict=True)}


def stored_stalls(store: Store, streams: Sequence[Stream]) -> frozenset[GapKey]:
    """Return the gaps of these streams that the store has as stalls."""
    starts = [stream.start_ns for stream in streams]
    traces = quoted_all(sorted({stream.trace_id for stream in streams}))
    spans = integers(np.frombuffer(b"".join(stream.span_id for stream in streams), "<u8"))
    table = store.select_arrow(_STORED.format(inside=between_ns("start_time", min(starts), max(starts)), traces=traces, spans=spans))
    columns = [table[name].to_pylist() for name in ("tenant", "trace_id", "span_id", "gap_start_us")]
    return frozenset((unquoted(tenant), trace, span, int(start)) for tenant, trace, span, start in zip(*columns, strict=True))


def clock_of(clock: str, service_name: str, client_address: str) -> str:
    """Return an id of the clock of a stream's times. Emitters that do not report a clock share one for each service and address."""
    return f"{clock.rsplit(':', 1)[0]} {service_name} {client_address}"


def _is_due(due: Due, gap_us_min: int) -> str:
    return f"vantage IN ('client', 'server') AND gap_max_us >= {gap_us_min} AND {due.which}"


def _stream(row: Row, server: Row | None, sockets: SocketSamples | None) -> Stream:
    """Return the stream of the judged row, with the row of its server; both are the same where no client was recorded."""
    return Stream(
        tenant=row["tenant"],
        start_ns=row["start_ns"],
        trace_id=row["trace_id"],
        span_id=row["span_id"],
        judged=_vantage(row, sockets),
        server=_vantage(server) if server is not None else None,
        engine_id=(server or row)["engine_id"],
        response_id=row["response_id"],
        clock=clock_of(row["clock"], row["service_name"], row["client_address"]),
        server_boot=server["clock"].split(":", 1)[0] if server is not None else "",
        vantage=row["vantage"],
        called=(row["provider"], row["server_address"], row["server_port"]),
    )


def _rows(table: pa.Table) -> Iterator[Row]:
    """Yield the rows, with their arrays as numpy arrays."""
    plain = {name: table[name].to_pylist() for name in table.column_names if name not in _ARRAYS}
    for name in _TEXTS:
        plain[name] = list(map(unquoted, plain[name]))
    columns = plain | {name: _arrays(table[name]) for name in _ARRAYS}
    for values in zip(*columns.values(), strict=True):
        yield dict(zip(columns, values, strict=True))


def _arrays(column: pa.ChunkedArray) -> list[Ints]:
    """Return the array of each row of a column of arrays."""
    arrays = column.combine_chunks()
    values = arrays.flatten().to_numpy(zero_copy_only=False).astype(np.int64)
    return np.split(values, np.cumsum(arrays.value_lengths().to_numpy()[:-1])) if len(arrays) else []


def _vantage(row: Row, sockets: SocketSamples | None = None) -> Vantage:
    dt_us, kinds, sizes, holds = (row[name] for name in _ARRAYS)
    return Vantage.of(row["start_ns"], dt_us, kinds, sizes, holds, sockets, is_cut=bool(row["is_cut"]))


def _sockets_in(store: Store, due: Due, clients: Sequence[Row]) -> dict[tuple[str, bytes, bytes], SocketSamples]:
    """Return the socket samples of these streams."""
    spans = integers(np.unique(np.frombuffer(b"".join(row["span_id"] for row in clients), "<u8")))
    table = store.select_arrow(_SOCKETS.format(inside=f"{due.inside} AND reinterpretAsUInt64(span_id) IN ({spans})"))
    keys = (table[name].to_pylist() for name in ("tenant", "trace_id", "span_id"))
    rows = zip(*keys, *(_arrays(table[name]) for name in _SOCKET_ARRAYS), strict=True)
    return {(unquoted(tenant), trace, span): SocketSamples(*arrays) for tenant, trace, span, *arrays in rows}
