"""Find the server of each client among all stored streams.

A server has the trace and the response id of its client. Without a response id it has the client's span as its parent. Where no server has,
the only client and the only server of a trace belong together. Otherwise nothing shows which server is the client's. The answer depends on
the client's trace alone, not on the clients that are in question together.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from legato_ingest.attribution.load.due import Due
from legato_ingest.attribution.load.learned_offsets import CLOCKS_APART_NS
from legato_ingest.definitions import SUPERSEDED_OUTCOME
from legato_ingest.storage import Store
from legato_ingest.storage.sql import quoted_all, unquoted

__all__ = ["Client", "Found", "client_of", "found_servers", "key_of"]

Row = Mapping[str, Any]
Key = tuple[str, bytes, str]
"""Tenant, trace id and response id."""
Client = tuple[str, bytes, bytes, int]
"""Tenant, trace id, span id and start (ns) of a client."""

# Of several servers with the ids of one client, the last one counts.
_NAMED = """
SELECT
    tenant, trace_id, response_id, argMax(reinterpretAsUInt64(span_id), (start_time, span_id, rev)) AS span,
    toInt64(argMax(ifNull(chunks, 0), (start_time, span_id, rev))) AS server_chunks, toUnixTimestamp64Nano(max(start_time)) AS server_ns
FROM stream_revs
WHERE {inside} AND vantage = 'server' AND trace_id IN ({traces}) AND (tenant, trace_id, response_id) IN
    (
        SELECT key.1, toFixedString(key.2, 16), key.3 FROM
        (
            SELECT arrayJoin(arrayZip(
                splitByChar(char(0), unhex('{tenants}')), arrayMap(n -> substring(unhex('{all_traces}'), 1 + 16 * n, 16), range({count})),
                splitByChar(char(0), unhex('{responses}')))) AS key
        )
    )
GROUP BY tenant, trace_id, response_id"""
_NEWEST = f"""
    SELECT
        tenant, trace_id, span_id, parent_span_id, vantage, response_id, toInt64(ifNull(chunks, 0)) AS chunks,
        toUnixTimestamp64Nano(start_time) AS start_ns
    FROM stream_revs FINAL
    PREWHERE {{inside}} AND tenant IN ({{tenants}}) AND trace_id IN ({{traces}})
    WHERE vantage IN ('client', 'server') AND outcome != '{SUPERSEDED_OUTCOME}'"""
# As above, the last one counts; a client of the same ids at another time has another server.
_CHILDREN = f"""
SELECT
    tenant, trace_id, client_span, client_ns, max(start_ns) AS server_ns,
    argMax(reinterpretAsUInt64(span_id), (start_ns, span_id)) AS span, argMax(chunks, (start_ns, span_id)) AS server_chunks
FROM ({_NEWEST} AND vantage = 'server' AND response_id = '') AS servers
INNER JOIN
(
    SELECT
        toFixedString(substring(id, 1, 16), 16) AS client_trace, toFixedString(substring(id, 17, 8), 8) AS client_span,
        reinterpretAsInt64(substring(id, 25, 8)) AS client_ns
    FROM (SELECT substring(unhex('{{digits}}'), 1 + 32 * number, 32) AS id FROM numbers({{count}}))
) AS clients ON trace_id = client_trace AND parent_span_id = client_span
WHERE abs(start_ns - client_ns) <= {CLOCKS_APART_NS}
GROUP BY tenant, trace_id, client_span, client_ns
SETTINGS do_not_merge_across_partitions_select_final = 1"""
# A stream is the only one of its trace at its vantage if no other starts within an hour of it. A client and a server that start within half
# an hour of each other are then each other's only ones; and what matters to a client is less than ``CLOCKS_APART_NS`` from it, so a stream
# that arrives later makes the client due again.
_ALONE_NS = 3_600_000_000_000
_HOURS = f"""
SELECT
    tenant, trace_id, vantage, intDiv(start_ns, {_ALONE_NS}) AS hour, count() AS streams,
    min(start_ns) AS first_ns, max(start_ns) AS last_ns,
    any(reinterpretAsUInt64(span_id)) AS span, any(chunks) AS server_chunks, any(response_id = '') AS is_unnamed
FROM ({_NEWEST})
GROUP BY tenant, trace_id, vantage, hour
ORDER BY tenant, trace_id, vantage, hour
SETTINGS do_not_merge_across_partitions_select_final = 1"""


class Found(NamedTuple):
    """A server: tenant, trace id, start (ns), span id as a number, and the number of its chunks."""

    tenant: str
    trace_id: bytes
    start_ns: int
    span: int
    chunks: int


def key_of(row: Row) -> Key:
    """Return the ids that a client has in common with its server, if it has a response id."""
    return row["tenant"], row["trace_id"], row["response_id"]


def client_of(row: Row) -> Client:
    """Return what identifies a client."""
    return row["tenant"], row["trace_id"], row["span_id"], row["start_ns"]


def found_servers(store: Store, due: Due, clients: Sequence[Row]) -> dict[Client, Found]:
    """Return the servers of these clients, which are among the ``due`` streams, as far as they are known."""
    named, unnamed = ([row for row in clients if bool(row["response_id"]) == is_named] for is_named in (True, False))
    servers = _named(store, due, named)
    found = {client_of(row): server for row in named if (server := servers.get(key_of(row))) is not None}
    if unnamed:
        found |= _only(store, due, unnamed) | _children(store, due, unnamed)
    return found


def _named(store: Store, due: Due, clients: Sequence[Row]) -> dict[Key, Found]:
    """Return the servers with these clients' response ids."""
    # A zero byte divides the texts. No known emitter has one in an id.
    own = sorted({key for row in clients if "\0" not in (key := key_of(row))[0] + key[2]})
    if not own:
        return {}
    tenants, traces, responses = zip(*own, strict=True)
    sql = _NAMED.format(
        inside=due.started(CLOCKS_APART_NS),
        traces=quoted_all(sorted(set(traces))),
        tenants="\0".join(tenants).encode().hex(),
        all_traces=b"".join(traces).hex(),
        responses="\0".join(responses).encode().hex(),
        count=len(own),
    )
    rows = store.select_arrow(sql).to_pylist()
    return {(unquoted(row["tenant"]), row["trace_id"], unquoted(row["response_id"])): _found(row) for row in rows}


def _children(store: Store, due: Due, clients: Sequence[Row]) -> dict[Client, Found]:
    """Return the servers that are children of these clients."""
    digits = b"".join(row["trace_id"] + row["span_id"] + row["start_ns"].to_bytes(8, "little") for row in clients).hex()
    sql = _CHILDREN.format(**_places(due, clients), digits=digits, count=len(clients))
    rows = store.select_arrow(sql).to_pylist()
    return {(unquoted(row["tenant"]), row["trace_id"], row["client_span"], row["client_ns"]): _found(row) for row in rows}


def _only(store: Store, due: Due, clients: Sequence[Row]) -> dict[Client, Found]:
    """Return the servers of those of these clients that are the only ones of their trace, if that has a single server."""
    hours: dict[tuple[str, bytes, str], list[Row]] = {}
    for row in store.select_arrow(_HOURS.format(**_places(due, clients))).to_pylist():
        hours.setdefault((unquoted(row["tenant"]), row["trace_id"], unquoted(row["vantage"])), []).append(row)
    lone = {key: [row for row in _lone(rows) if row["is_unnamed"]] for key, rows in hours.items()}
    out: dict[Client, Found] = {}
    for row in clients:
        tenant, trace, span, start_ns = client_of(row)
        own = (each for each in lone.get((tenant, trace, "client"), ()) if each["span"] == int.from_bytes(span, "little"))
        if any(each["first_ns"] == start_ns for each in own):
            servers = lone.get((tenant, trace, "server"), ())
            near = (each for each in servers if 2 * abs(each["first_ns"] - start_ns) < _ALONE_NS)
            out |= {client_of(row): _found({**each, "server_ns": each["first_ns"]}) for each in near}
    return out


def _lone(hours: Sequence[Row]) -> Iterable[Row]:
    """Yield the hours with a single stream, without another one within an hour of it. The hours are those of one trace and vantage."""
    for before, row, after in zip((None, *hours[:-1]), hours, (*hours[1:], None), strict=True):
        is_first = before is None or row["first_ns"] - before["last_ns"] >= _ALONE_NS
        is_last = after is None or after["first_ns"] - row["last_ns"] >= _ALONE_NS
        if row["streams"] == 1 and is_first and is_last:
            yield row


def _places(due: Due, clients: Sequence[Row]) -> dict[str, str]:
    return {
        "inside": due.started(CLOCKS_APART_NS),
        "tenants": quoted_all(sorted({row["tenant"] for row in clients})),
        "traces": quoted_all(sorted({row["trace_id"] for row in clients})),
    }


def _found(row: Row) -> Found:
    return Found(unquoted(row["tenant"]), row["trace_id"], row["server_ns"], row["span"], row["server_chunks"])
