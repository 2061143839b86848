"""What the store knows of the streams of some time, as arrays for the judgement.

One idea: two queries for a whole slice of time, clients and their servers, columns as Arrow; Python touches streams, never chunks. It reads
and does not judge.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from legato_ingest.attribution.model.gaps import Sockets, Vantage
from legato_ingest.storage import Store
from legato_ingest.storage.sql import after_until_ms, between_ns, quoted_all, unquoted

__all__ = ["CLOCKS_APART_NS", "Received", "Stream", "clock_of", "slices_of", "streams_in", "verdicts_of"]

_ARRAYS = "dt_us, chunk_kind, chunk_bytes, chunk_hold_64us"
_STREAMS = """
SELECT
    tenant, toUnixTimestamp64Nano(start_time) AS start_ns, trace_id, span_id, vantage, response_id, engine_id, clock, service_name,
    client_address, {arrays}
FROM stream_revs FINAL
WHERE {inside} AND {which}
ORDER BY start_time, span_id
SETTINGS do_not_merge_across_partitions_select_final = 1, max_threads = 1, max_query_size = 1000000000, max_ast_elements = 10000000"""
_SOCKETS = """
SELECT tenant, trace_id, span_id, at, queued_bytes, window_bytes, idle_ms FROM stream_sockets FINAL
WHERE {inside}
SETTINGS max_threads = 1"""
_SECONDS = """
SELECT toInt64(intDiv(toUnixTimestamp64Nano(start_time), 1000000000)) AS second, toInt64(count()) AS streams
FROM stream_revs
WHERE {inside} AND {which}
GROUP BY second ORDER BY second
SETTINGS max_threads = 1"""
_TOLD = """
SELECT tenant, trace_id, span_id, gap_start_us FROM verdicts FINAL
WHERE {inside} AND trace_id IN ({traces}) AND cause != 'base'
SETTINGS max_query_size = 1000000000, max_ast_elements = 10000000, max_threads = 1"""
_SECOND_NS = 1_000_000_000
_STRETCH_NS_MAX = 300 * _SECOND_NS
# The server's clock may be this far from the client's and its vantage still be found.
CLOCKS_APART_NS = 7_200_000_000_000

Received = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Stream:
    """A client's stream with a gap worth judging, and the same stream at its server where that was recorded.

    ``clock``: what is known of the clock that the client's times are of; streams with the same are of one clock. ``server_boot``: which
    boot of which host the server's times are of, where it was told.
    """

    tenant: str
    start_ns: int
    trace_id: bytes
    span_id: bytes
    client: Vantage
    server: Vantage | None
    engine_id: str
    response_id: str
    clock: str
    server_boot: str = ""


def slices_of(
    store: Store, low_ns: int, high_ns: int, gap_us_min: int, received: Received | None, streams_max: int
) -> list[tuple[int, int]]:
    """The time as stretches that hold such streams, each of about ``streams_max`` at most (a second may hold more)."""
    table = store.select_arrow(_SECONDS.format(inside=_started(low_ns, high_ns), which=_due(gap_us_min, received)))
    out: list[tuple[int, int]] = []
    held = 0
    for second, count in zip(table["second"].to_pylist(), table["streams"].to_pylist(), strict=True):
        low, high = max(low_ns, second * _SECOND_NS), min(high_ns, (second + 1) * _SECOND_NS - 1)
        if out and held + count <= streams_max and low - out[-1][0] < _STRETCH_NS_MAX:
            out[-1] = (out[-1][0], high)
            held += count
        else:
            out.append((low, high))
            held = count
    return out


def clock_of(clock: str, service_name: str, client_address: str) -> str:
    """What is known of the clock of a stream's times: emitters that say nothing share one a service and address."""
    return f"{clock.rsplit(':', 1)[0]} {service_name} {client_address}"


def _started(low_ns: int, high_ns: int) -> str:
    return between_ns("start_time", low_ns, high_ns)


def _due(gap_us_min: int, received: Received | None) -> str:
    which = f"vantage = 'client' AND ended AND (gap_max_us >= {gap_us_min})"
    if received is not None:
        which += f" AND trace_id IN (SELECT trace_id FROM stream_revs WHERE {after_until_ms('received_at', *received)})"
    return which


def streams_in(store: Store, low_ns: int, high_ns: int, gap_us_min: int, received: Received | None = None) -> list[Stream]:
    """Client streams that started in this time and had such a gap, each with its server's vantage (the same trace and response).

    ``received``: only those of which a vantage was received in this time.
    """
    which = _due(gap_us_min, received)
    clients = store.select_arrow(_STREAMS.format(arrays=_ARRAYS, inside=_started(low_ns, high_ns), which=which))
    if not clients.num_rows:
        return []
    traces = quoted_all(sorted(set(clients["trace_id"].to_pylist())))
    servers = store.select_arrow(
        _STREAMS.format(
            arrays=_ARRAYS,
            inside=_started(low_ns - CLOCKS_APART_NS, high_ns + CLOCKS_APART_NS),
            which=f"vantage = 'server' AND ended AND trace_id IN ({traces})",
        )
    )
    by_key = {_key(row): row for row in _rows(servers)}
    sockets = _sockets_in(store, low_ns, high_ns)
    out = []
    for row in _rows(clients):
        server = by_key.get(_key(row))
        out.append(
            Stream(
                tenant=row["tenant"],
                start_ns=row["start_ns"],
                trace_id=row["trace_id"],
                span_id=row["span_id"],
                client=_vantage(row, sockets.get((row["tenant"], row["trace_id"], row["span_id"]))),
                server=_vantage(server) if server else None,
                engine_id=(server or row)["engine_id"],
                response_id=row["response_id"],
                clock=clock_of(row["clock"], row["service_name"], row["client_address"]),
                server_boot=server["clock"].split(":", 1)[0] if server else "",
            )
        )
    return out


def verdicts_of(store: Store, streams: Sequence[Stream]) -> set[tuple[str, bytes, bytes, int]]:
    """The gaps of these streams that are called stalls: tenant, trace, span, and the gap's start in µs."""
    starts = [stream.start_ns for stream in streams]
    traces = quoted_all(sorted({stream.trace_id for stream in streams}))
    table = store.select_arrow(_TOLD.format(inside=_started(min(starts), max(starts)), traces=traces))
    columns = [table[name].to_pylist() for name in ("tenant", "trace_id", "span_id", "gap_start_us")]
    return {(unquoted(tenant), trace, span, int(start)) for tenant, trace, span, start in zip(*columns, strict=True)}


def _rows(table: pa.Table) -> Iterator[dict[str, Any]]:
    """Each row with its arrays as numpy's."""
    names = [name for name in table.column_names if name not in _ARRAYS.split(", ")]
    plain = [table[name].to_pylist() for name in names]
    lists = {name: table[name].combine_chunks() for name in _ARRAYS.split(", ")}
    for i, values in enumerate(zip(*plain, strict=True)):
        row = {name: value if name in ("trace_id", "span_id") else unquoted(value) for name, value in zip(names, values, strict=True)}
        row.update({name: column[i].values.to_numpy(zero_copy_only=False).astype(np.int64) for name, column in lists.items()})
        yield row


def _key(row: dict[str, Any]) -> tuple[str, bytes, str]:
    return row["tenant"], row["trace_id"], row["response_id"]


def _vantage(row: dict[str, Any], sockets: Sockets | None = None) -> Vantage:
    return Vantage.of(row["start_ns"], row["dt_us"], row["chunk_kind"], row["chunk_bytes"], row["chunk_hold_64us"], sockets)


def _sockets_in(store: Store, low_ns: int, high_ns: int) -> dict[tuple[str, bytes, bytes], Sockets]:
    """What is known of the sockets of the streams that started in this time."""
    table = store.select_arrow(_SOCKETS.format(inside=_started(low_ns, high_ns)))
    arrays = [table[name].combine_chunks() for name in ("at", "queued_bytes", "window_bytes", "idle_ms")]
    keys = zip(*(table[name].to_pylist() for name in ("tenant", "trace_id", "span_id")), strict=True)
    return {
        (unquoted(tenant), trace, span): Sockets(*(column[i].values.to_numpy(zero_copy_only=False).astype(np.int64) for column in arrays))
        for i, (tenant, trace, span) in enumerate(keys)
    }
