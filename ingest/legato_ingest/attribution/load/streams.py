"""Load streams to judge: clients with a long gap, and the same streams at their servers; and servers with a long gap without a client.

Three queries cover a stretch of time: one for the streams with a long gap, one for servers of such clients that had none, and one for the
traces that have a client. The columns arrive as Arrow arrays, so Python handles
streams and never single chunks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from legato_ingest.attribution.load.due import CLOCKS_APART_NS, Due
from legato_ingest.attribution.load.superseded import KNOWS_CHUNKS
from legato_ingest.attribution.model.judge import GapKey
from legato_ingest.attribution.model.vantage import SocketSamples, Stream, Vantage
from legato_ingest.causes import HEALTHY
from legato_ingest.storage import Store
from legato_ingest.storage.sql import between_ns, quoted_all, unquoted

__all__ = ["clock_of", "slices_of", "stored_stalls", "streams_in"]

Row = dict[str, Any]
Ints = NDArray[np.int64]
# Tenant, trace id and response id.
_Key = tuple[str, bytes, str]

_TEXTS = ("tenant", "vantage", "response_id", "engine_id", "clock", "service_name", "client_address")
_ARRAYS = ("dt_us", "chunk_kind", "chunk_bytes", "chunk_hold_64us")
_SOCKET_ARRAYS = ("at", "queued_bytes", "window_bytes", "idle_ms")
_STREAMS = f"""
SELECT
    tenant, toUnixTimestamp64Nano(start_time) AS start_ns, trace_id, span_id, vantage, response_id, engine_id, clock, service_name,
    client_address, {", ".join(_ARRAYS)}
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
_SECONDS = """
SELECT toInt64(intDiv(toUnixTimestamp64Nano(start_time), 1000000000)) AS second, toInt64(count()) AS streams
FROM stream_revs
WHERE {inside} AND {which}
GROUP BY second ORDER BY second"""
_STORED = f"""
SELECT tenant, trace_id, span_id, gap_start_us FROM verdicts FINAL
WHERE {{inside}} AND trace_id IN ({{traces}}) AND cause != '{HEALTHY}'"""
_SECOND_NS = 1_000_000_000
_SLICE_NS_MAX = 300 * _SECOND_NS


def slices_of(store: Store, due: Due, gap_us_min: int, streams_max: int) -> list[Due]:
    """Divide due streams by their start into slices with about ``streams_max`` of them at most; a single second may hold more."""
    table = store.select_arrow(_SECONDS.format(inside=due.inside, which=_is_due(due, gap_us_min)))
    out: list[Due] = []
    held = 0
    for second, count in zip(table["second"].to_pylist(), table["streams"].to_pylist(), strict=True):
        low, high = max(due.low_ns, second * _SECOND_NS), min(due.high_ns, (second + 1) * _SECOND_NS - 1)
        if out and held + count <= streams_max and low - out[-1].low_ns < _SLICE_NS_MAX:
            out[-1] = replace(out[-1], high_ns=high)
            held += count
        else:
            out.append(replace(due, low_ns=low, high_ns=high))
            held = count
    return out


def streams_in(store: Store, due: Due, gap_us_min: int) -> list[Stream]:
    """Return the due client streams with a gap of this length, each with the vantage of its server, and such streams at servers without
    a client.

    The server's vantage has the same trace and response id. A server is without a client if its trace has none.
    """
    table = store.select_arrow(_STREAMS.format(inside=due.inside, which=_is_due(due, gap_us_min)))
    rows = list(_rows(table))
    clients, servers = ([row for row in rows if row["vantage"] == vantage] for vantage in ("client", "server"))
    by_key = {_key(row): row for row in servers}
    by_key |= _servers_of(store, due, [row for row in clients if _key(row) not in by_key])
    traces = _traces_with_client(store, due, servers)
    sockets = _sockets_in(store, due) if clients else {}
    return [
        *(_stream(row, by_key.get(_key(row)), sockets.get((row["tenant"], row["trace_id"], row["span_id"]))) for row in clients),
        *(_stream(row, row, None) for row in servers if (row["tenant"], row["trace_id"]) not in traces),
    ]


def _servers_of(store: Store, due: Due, clients: Sequence[Row]) -> dict[_Key, Row]:
    """Return the rows of these clients' servers."""
    if not clients:
        return {}
    inside = f"{due.started(CLOCKS_APART_NS)} AND trace_id IN ({quoted_all(sorted({row['trace_id'] for row in clients}))})"
    table = store.select_arrow(_STREAMS.format(inside=inside, which="vantage = 'server'"))
    return {_key(row): row for row in _rows(table)}


def _traces_with_client(store: Store, due: Due, servers: Sequence[Row]) -> set[tuple[str, bytes]]:
    """Return the traces (tenant, trace id) of these servers in which a client was recorded, finished or not."""
    if not servers:
        return set()
    traces = quoted_all(sorted({row["trace_id"] for row in servers}))
    table = store.select_arrow(_CLIENTS.format(inside=due.started(CLOCKS_APART_NS), traces=traces))
    return {(unquoted(tenant), trace) for tenant, trace in zip(table["tenant"].to_pylist(), table["trace_id"].to_pylist(), strict=True)}


def stored_stalls(store: Store, streams: Sequence[Stream]) -> frozenset[GapKey]:
    """Return the gaps of these streams that the store has as stalls."""
    starts = [stream.start_ns for stream in streams]
    traces = quoted_all(sorted({stream.trace_id for stream in streams}))
    table = store.select_arrow(_STORED.format(inside=between_ns("start_time", min(starts), max(starts)), traces=traces))
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


def _key(row: Row) -> _Key:
    return row["tenant"], row["trace_id"], row["response_id"]


def _vantage(row: Row, sockets: SocketSamples | None = None) -> Vantage:
    dt_us, kinds, sizes, holds = (row[name] for name in _ARRAYS)
    return Vantage.of(row["start_ns"], dt_us, kinds, sizes, holds, sockets)


def _sockets_in(store: Store, due: Due) -> dict[tuple[str, bytes, bytes], SocketSamples]:
    """Return the socket samples of the streams that started in this time."""
    table = store.select_arrow(_SOCKETS.format(inside=due.started()))
    keys = (table[name].to_pylist() for name in ("tenant", "trace_id", "span_id"))
    rows = zip(*keys, *(_arrays(table[name]) for name in _SOCKET_ARRAYS), strict=True)
    return {(unquoted(tenant), trace, span): SocketSamples(*arrays) for tenant, trace, span, *arrays in rows}
