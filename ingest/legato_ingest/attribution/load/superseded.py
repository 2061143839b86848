"""Find the stored stalls that others replace: those of servers with a recorded client, and those of rows that were superseded.

The module reads which stalls these are; `verdict_rows.withdrawn_rows` makes the rows that withdraw them.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from legato_ingest.attribution.load.due import Due
from legato_ingest.attribution.load.learned_offsets import CLOCKS_APART_NS
from legato_ingest.causes import HEALTHY
from legato_ingest.definitions import SUPERSEDED_OUTCOME
from legato_ingest.storage import Store

__all__ = ["KNOWS_CHUNKS", "OF_OTHER_CALLS", "superseded_stalls"]

# A row of a client that takes the place of its server: it runs, or has chunks. Clients of other libraries often have a summary alone.
KNOWS_CHUNKS = f"vantage = 'client' AND outcome != '{SUPERSEDED_OUTCOME}' AND (chunks IS NOT NULL OR NOT ended)"

OF_OTHER_CALLS = f"""
SELECT tenant, trace_id, span_id FROM
(
    SELECT
        tenant, trace_id, span_id, vantage, response_id,
        countIf(vantage = 'server') OVER calls AS servers, countIf(vantage = 'client' AND response_id = '') OVER calls AS unnamed,
        countIf(vantage = 'client') OVER (PARTITION BY tenant, trace_id, response_id) AS clients
    FROM stream_revs FINAL
    PREWHERE {{around}} AND {{traces}}
    WHERE vantage = 'server' AND outcome != '{SUPERSEDED_OUTCOME}' OR {KNOWS_CHUNKS}
    WINDOW calls AS (PARTITION BY tenant, trace_id)
)
WHERE vantage = 'server' AND response_id != '' AND servers > 1 AND unnamed = 0 AND clients = 0"""
"""The servers (tenant, trace, span) in some traces that are those of no client of the trace: all clients have other response ids. The only
server of a trace is its clients' in any case, because a gateway may give a response another id."""
_BY_CLIENT = f"""
vantage = 'server'
    AND (tenant, trace_id) IN (SELECT tenant, trace_id FROM stream_revs WHERE {{inside}} AND {KNOWS_CHUNKS} AND {{which}})"""
_BY_ROW = f"""
(tenant, trace_id, span_id) IN
    (SELECT tenant, trace_id, span_id FROM stream_revs WHERE {{inside}} AND outcome = '{SUPERSEDED_OUTCOME}' AND {{which}})"""
_IS_STALL = f"cause != '{HEALTHY}' AND {{around}}"
# Whether there is a stall of a server at all, and a due row that was superseded. Usually there is none, and to know this takes little: the
# ids of some hours of stalls are not read.
_ANY = f"""
SELECT
    (SELECT count() > 0 FROM (SELECT 1 FROM verdicts WHERE {_IS_STALL} AND vantage = 'server' LIMIT 1)),
    (SELECT count() > 0 FROM (SELECT 1 FROM stream_revs WHERE {{inside}} AND outcome = '{SUPERSEDED_OUTCOME}' AND {{which}} LIMIT 1))"""
_COLUMNS = "tenant, toUnixTimestamp64Nano(start_time) AS start_ns, trace_id, span_id, gap_start_us, gap_us, engine_id, vantage"
# About so many at once: each takes some 200 bytes.
_AT_ONCE = 250_000


def superseded_stalls(store: Store, due: Due) -> Iterator[pa.Table]:
    """Yield the stalls of servers of due clients, and of due rows that were superseded: key, length, engine, vantage."""
    conditions = {"around": due.started(CLOCKS_APART_NS), "inside": due.inside, "which": due.which}
    (found,) = store.select(_ANY.format(**conditions))
    reasons = [reason for reason, is_any in zip((_BY_CLIENT, _BY_ROW), found, strict=True) if is_any]
    if not reasons:
        return
    where = f"{_IS_STALL} AND ({' OR '.join(reasons)})".format(**conditions)
    ((stalls,),) = store.select(f"SELECT count() FROM verdicts WHERE {where}")
    parts = -(-int(stalls) // _AT_ONCE)
    if parts and _BY_CLIENT in reasons:
        traces = f"(tenant, trace_id) IN (SELECT tenant, trace_id FROM verdicts WHERE {where})"
        others = OF_OTHER_CALLS.format(around=conditions["around"], traces=traces)
        where += f" AND (tenant, trace_id, span_id) NOT IN ({others})"
    part_of = f"cityHash64(tenant, trace_id, span_id, gap_start_us) % {parts}"
    for part in range(parts):
        yield store.select_arrow(f"SELECT {_COLUMNS} FROM verdicts FINAL WHERE {where} AND {part_of} = {part}")
