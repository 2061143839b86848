"""Load the stalls of running streams, from the reports of their vantages: the gap since the last content until the report.

Nothing else of such a stream is known, so it has two chunks: the last content, and one at the time of the report. The verdict at the
stream's end has the same key and replaces the one on the open gap.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from legato_ingest.attribution.load.by_engine import ENGINE_NS_SPARSE
from legato_ingest.attribution.load.shards import trace_is_in_shards
from legato_ingest.attribution.load.streams import clock_of
from legato_ingest.attribution.model.vantage import Stream, Vantage
from legato_ingest.definitions import by_tenant
from legato_ingest.storage import Store
from legato_ingest.storage.judged import ALL_SHARDS
from legato_ingest.storage.sql import after_until_ms, unquoted

__all__ = ["open_stalls", "small_and_large"]

_NEW = "SELECT tenant, trace_id FROM stream_silences WHERE {new}"
# The newest of each tenant come first, so that tenants with few are complete.
_SHARED = """
SELECT tenant, trace_id FROM
(
    SELECT tenant, trace_id, row_number() OVER (PARTITION BY tenant ORDER BY max(received_at) DESC, trace_id) AS place
    FROM stream_silences
    WHERE {new}
    GROUP BY tenant, trace_id
)
ORDER BY place, tenant
LIMIT {most}"""
# Reports without any content so far are about no gap: the stream waits for its first output. Of a stream the newest gap counts, and two
# silent streams of a trace are as good as more of them.
_REPORTS = f"""
SELECT * FROM
(
    SELECT
        tenant, toUnixTimestamp64Nano(start_time) AS start_ns, trace_id, span_id, vantage, engine_id, service_name, clock, gap_start_us,
        max(silence_us) AS length_us, max(resumed) AS has_ended
    FROM stream_silences
    WHERE (tenant, trace_id) IN ({_SHARED}) AND received_at > now64(3) - INTERVAL 1 HOUR AND gap_start_us > 0
        AND vantage IN ('client', 'server')
        AND (tenant, trace_id, span_id) NOT IN
        (
            SELECT tenant, trace_id, span_id FROM stream_revs
            WHERE ended AND received_at > now64(3) - INTERVAL 1 HOUR AND (tenant, trace_id) IN ({_NEW})
        )
    GROUP BY tenant, start_ns, trace_id, span_id, vantage, engine_id, service_name, clock, gap_start_us
    ORDER BY start_ns DESC, gap_start_us DESC
    LIMIT 1 BY tenant, trace_id, span_id, vantage
)
LIMIT 2 BY tenant, trace_id, vantage"""
# One run judges at most so many. Others are judged at their next report, or at their end.
_MOST = 10_000
# A tenant with more, or with gaps that begin in more stretches of time, or of engines over a longer time, is judged after the others: each
# stretch, and each time of an engine, costs some queries.
_SMALL = 2_000
_STRETCHES_SMALL, _STRETCH_NS = 4, 300_000_000_000

Row = Mapping[str, Any]


def open_stalls(store: Store, after_ms: int, until_ms: int, shards: int = ALL_SHARDS, tenants: str = "1") -> list[Stream]:
    """Return the running streams of these shards with a gap that was reported between these times of receipt, 10,000 at most.

    ``tenants``: a condition on `tenant`. If there are more streams, tenants have equal shares. A client's gap needs its server's: without
    it nothing shows on which side the stream stands still. A server's gap counts where no client of the trace is silent.
    """
    new = f"{after_until_ms('received_at', after_ms, until_ms)} AND {trace_is_in_shards(shards)} AND {tenants}"
    ((any_new,),) = store.select(f"SELECT count() > 0 FROM stream_silences WHERE {new}")
    if not any_new:
        return []
    rows = [_decoded(row) for row in store.select_arrow(_REPORTS.format(new=new, most=_MOST)).to_pylist()]
    clients, servers = (_newest(row for row in rows if row["vantage"] == side) for side in ("client", "server"))
    return [
        *(_stream(row, servers[key]) for key, row in clients.items() if key in servers),
        *(_stream(row, row) for key, row in servers.items() if key not in clients),
    ]


def small_and_large(streams: Iterable[Stream]) -> tuple[list[list[Stream]], list[list[Stream]]]:
    """Divide open stalls by the time at which they began, the newest first: first those of tenants with little work, then the others.

    A part is about five minutes, and a part of the second kind about one tenant.
    """
    small: dict[tuple[int, str], list[Stream]] = {}
    large: dict[tuple[int, str], list[Stream]] = {}
    for tenant, own in by_tenant(streams).items():
        parts, name = (small, "") if _is_small(own) else (large, tenant)
        for stream in own:
            parts.setdefault((-(stream.first_ns // _STRETCH_NS), name), []).append(stream)
    return [small[key] for key in sorted(small)], [large[key] for key in sorted(large)]


def _is_small(streams: Sequence[Stream]) -> bool:
    """Whether these open stalls of one tenant are little work."""
    engines: dict[str, int] = {}
    for stream in streams:
        engines[stream.engine_id] = max(engines.get(stream.engine_id, 0), stream.last_ns - stream.first_ns)
    stretches = {stream.first_ns // _STRETCH_NS for stream in streams}
    return len(streams) <= _SMALL and len(stretches) <= _STRETCHES_SMALL and sum(engines.values()) <= ENGINE_NS_SPARSE


def _decoded(row: Row) -> Row:
    return {name: value if name in ("trace_id", "span_id") else unquoted(value) for name, value in row.items()}


def _newest(rows: Iterable[Row]) -> dict[tuple[str, bytes], Row]:
    """Return the first gap of each trace. A trace with several silent streams at one vantage is left out: they cannot be matched."""
    out: dict[tuple[str, bytes], Row] = {}
    several = set()
    for row in rows:
        key = (row["tenant"], row["trace_id"])
        if key in out and out[key]["span_id"] != row["span_id"]:
            several.add(key)
        out.setdefault(key, row)
    return {key: row for key, row in out.items() if key not in several}


def _stream(row: Row, server: Row) -> Stream:
    """Return the stream of the judged row. Both gaps get the shorter length, because the vantages report at different moments."""
    is_open = not (row["has_ended"] and server["has_ended"])
    length_us = min(int(row["length_us"]), int(server["length_us"])) if is_open else None
    return Stream(
        tenant=row["tenant"],
        start_ns=row["start_ns"],
        trace_id=row["trace_id"],
        span_id=row["span_id"],
        judged=_vantage(row, length_us),
        server=_vantage(server, length_us),
        engine_id=server["engine_id"],
        response_id="",
        clock=clock_of(row["clock"], row["service_name"], ""),
        server_boot=server["clock"].split(":", 1)[0],
        vantage=row["vantage"],
        is_open=is_open,
    )


def _vantage(row: Row, length_us: int | None) -> Vantage:
    begin = int(row["start_ns"]) + 1_000 * int(row["gap_start_us"])
    none = np.zeros(0, np.int64)
    return Vantage(np.array([begin, begin + 1_000 * (int(row["length_us"]) if length_us is None else length_us)]), none, none)
