"""Load streams to judge: clients with a long gap, and the same streams at their servers.

Two queries cover a stretch of time, one for the clients and one for their servers. The columns arrive as Arrow arrays, so Python handles
streams and never single chunks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from legato_ingest.attribution.model.judge import GapKey
from legato_ingest.attribution.model.vantage import SocketSamples, Stream, Vantage
from legato_ingest.causes import HEALTHY
from legato_ingest.storage import Store
from legato_ingest.storage.sql import after_until_ms, between_ns, quoted_all, unquoted

__all__ = ["CLOCKS_APART_NS", "Received", "clock_of", "slices_of", "stored_stalls", "streams_in"]

_ARRAYS = ("dt_us", "chunk_kind", "chunk_bytes", "chunk_hold_64us")
_SOCKET_ARRAYS = ("at", "queued_bytes", "window_bytes", "idle_ms")
_STREAMS = f"""
SELECT
    tenant, toUnixTimestamp64Nano(start_time) AS start_ns, trace_id, span_id, vantage, response_id, engine_id, clock, service_name,
    client_address, {", ".join(_ARRAYS)}
FROM stream_revs FINAL
WHERE {{inside}} AND {{which}}
ORDER BY start_time, span_id
SETTINGS do_not_merge_across_partitions_select_final = 1, max_threads = 1, max_query_size = 1000000000, max_ast_elements = 10000000"""
_SOCKETS = f"""
SELECT tenant, trace_id, span_id, {", ".join(_SOCKET_ARRAYS)} FROM stream_sockets FINAL
WHERE {{inside}}
SETTINGS max_threads = 1"""
_SECONDS = """
SELECT toInt64(intDiv(toUnixTimestamp64Nano(start_time), 1000000000)) AS second, toInt64(count()) AS streams
FROM stream_revs
WHERE {inside} AND {which}
GROUP BY second ORDER BY second
SETTINGS max_threads = 1"""
_STORED = f"""
SELECT tenant, trace_id, span_id, gap_start_us FROM verdicts FINAL
WHERE {{inside}} AND trace_id IN ({{traces}}) AND cause != '{HEALTHY}'
SETTINGS max_query_size = 1000000000, max_ast_elements = 10000000, max_threads = 1"""
_SECOND_NS = 1_000_000_000
_SLICE_NS_MAX = 300 * _SECOND_NS
CLOCKS_APART_NS = 7_200_000_000_000
"""The clocks of the client and the server may differ by this much, and the server's vantage is still found."""

Received = tuple[int, int]
"""Times of receipt in ms: after the first, until the second."""


def slices_of(
    store: Store, low_ns: int, high_ns: int, gap_us_min: int, received: Received | None, streams_max: int
) -> list[tuple[int, int]]:
    """Divide a stretch of time into slices with about ``streams_max`` such streams at most; a single second may hold more."""
    table = store.select_arrow(_SECONDS.format(inside=_started(low_ns, high_ns), which=_is_due(gap_us_min, received)))
    out: list[tuple[int, int]] = []
    held = 0
    for second, count in zip(table["second"].to_pylist(), table["streams"].to_pylist(), strict=True):
        low, high = max(low_ns, second * _SECOND_NS), min(high_ns, (second + 1) * _SECOND_NS - 1)
        if out and held + count <= streams_max and low - out[-1][0] < _SLICE_NS_MAX:
            out[-1] = (out[-1][0], high)
            held += count
        else:
            out.append((low, high))
            held = count
    return out


def streams_in(store: Store, low_ns: int, high_ns: int, gap_us_min: int, received: Received | None = None) -> list[Stream]:
    """Return the client streams that started between these times and had a gap of this length, each with the vantage of its server.

    The server's vantage has the same trace and response id. ``received``: only streams with a vantage that was received in that time.
    """
    clients = store.select_arrow(_STREAMS.format(inside=_started(low_ns, high_ns), which=_is_due(gap_us_min, received)))
    if not clients.num_rows:
        return []
    traces = quoted_all(sorted(set(clients["trace_id"].to_pylist())))
    around = _started(low_ns - CLOCKS_APART_NS, high_ns + CLOCKS_APART_NS)
    servers = store.select_arrow(_STREAMS.format(inside=around, which=f"vantage = 'server' AND ended AND trace_id IN ({traces})"))
    by_key = {_key(row): row for row in _rows(servers)}
    sockets = _sockets_in(store, low_ns, high_ns)
    return [_stream(row, by_key.get(_key(row)), sockets.get((row["tenant"], row["trace_id"], row["span_id"]))) for row in _rows(clients)]


def stored_stalls(store: Store, streams: Sequence[Stream]) -> frozenset[GapKey]:
    """Return the gaps of these streams that the store has as stalls."""
    starts = [stream.start_ns for stream in streams]
    traces = quoted_all(sorted({stream.trace_id for stream in streams}))
    table = store.select_arrow(_STORED.format(inside=_started(min(starts), max(starts)), traces=traces))
    columns = [table[name].to_pylist() for name in ("tenant", "trace_id", "span_id", "gap_start_us")]
    return frozenset((unquoted(tenant), trace, span, int(start)) for tenant, trace, span, start in zip(*columns, strict=True))


def clock_of(clock: str, service_name: str, client_address: str) -> str:
    """Return an id of the clock of a stream's times. Emitters that do not report a clock share one for each service and address."""
    return f"{clock.rsplit(':', 1)[0]} {service_name} {client_address}"


def _started(low_ns: int, high_ns: int) -> str:
    return between_ns("start_time", low_ns, high_ns)


def _is_due(gap_us_min: int, received: Received | None) -> str:
    which = f"vantage = 'client' AND ended AND (gap_max_us >= {gap_us_min})"
    if received is not None:
        which += f" AND trace_id IN (SELECT trace_id FROM stream_revs WHERE {after_until_ms('received_at', *received)})"
    return which


def _stream(client: dict[str, Any], server: dict[str, Any] | None, sockets: SocketSamples | None) -> Stream:
    return Stream(
        tenant=client["tenant"],
        start_ns=client["start_ns"],
        trace_id=client["trace_id"],
        span_id=client["span_id"],
        client=_vantage(client, sockets),
        server=_vantage(server) if server is not None else None,
        engine_id=(server or client)["engine_id"],
        response_id=client["response_id"],
        clock=clock_of(client["clock"], client["service_name"], client["client_address"]),
        server_boot=server["clock"].split(":", 1)[0] if server is not None else "",
    )


def _rows(table: pa.Table) -> Iterator[dict[str, Any]]:
    """Yield the rows, with their arrays as numpy arrays."""
    names = [name for name in table.column_names if name not in _ARRAYS]
    plain = [table[name].to_pylist() for name in names]
    lists = {name: table[name].combine_chunks() for name in _ARRAYS}
    for i, values in enumerate(zip(*plain, strict=True)):
        row = {name: value if name in ("trace_id", "span_id") else unquoted(value) for name, value in zip(names, values, strict=True)}
        row.update({name: column[i].values.to_numpy(zero_copy_only=False).astype(np.int64) for name, column in lists.items()})
        yield row


def _key(row: dict[str, Any]) -> tuple[str, bytes, str]:
    return row["tenant"], row["trace_id"], row["response_id"]


def _vantage(row: dict[str, Any], sockets: SocketSamples | None = None) -> Vantage:
    dt_us, kinds, sizes, holds = (row[name] for name in _ARRAYS)
    return Vantage.of(row["start_ns"], dt_us, kinds, sizes, holds, sockets)


def _sockets_in(store: Store, low_ns: int, high_ns: int) -> dict[tuple[str, bytes, bytes], SocketSamples]:
    """Return the socket samples of the streams that started in this time."""
    table = store.select_arrow(_SOCKETS.format(inside=_started(low_ns, high_ns)))
    arrays = [table[name].combine_chunks() for name in _SOCKET_ARRAYS]
    keys = zip(*(table[name].to_pylist() for name in ("tenant", "trace_id", "span_id")), strict=True)
    return {
        (unquoted(tenant), trace, span): SocketSamples(
            *(column[i].values.to_numpy(zero_copy_only=False).astype(np.int64) for column in arrays)
        )
        for i, (tenant, trace, span) in enumerate(keys)
    }
