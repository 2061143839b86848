"""Find the stored stalls that others replace: those of servers with a recorded client, and those of rows that were superseded.

The module reads which stalls these are; `verdict_rows.withdrawn_rows` makes the rows that withdraw them.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from legato_ingest.attribution.load.due import Due
from legato_ingest.attribution.load.learned_offsets import CLOCKS_APART_NS
from legato_ingest.attribution.load.other_calls import KNOWS_CHUNKS, MAY_HAVE_OTHERS, OF_OTHER_CALLS
from legato_ingest.causes import HEALTHY
from legato_ingest.definitions import SUPERSEDED_OUTCOME
from legato_ingest.storage import Store

__all__ = ["superseded_stalls"]

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
        if store.select(MAY_HAVE_OTHERS.format(around=conditions["around"], traces=traces)):
            others = OF_OTHER_CALLS.format(around=conditions["around"], traces=traces)
            where += f" AND (tenant, trace_id, span_id) NOT IN ({others})"
    part_of = f"cityHash64(tenant, trace_id, span_id, gap_start_us) % {parts}"
    for part in range(parts):
        yield store.select_arrow(f"SELECT {_COLUMNS} FROM verdicts FINAL WHERE {where} AND {part_of} = {part}")
