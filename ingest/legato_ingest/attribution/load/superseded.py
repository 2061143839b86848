"""Find the stored stalls of servers in traces with a client: the client's stalls take their place.

The module reads which stalls these are; `verdict_rows.withdrawn_rows` makes the rows that withdraw them.
"""

from __future__ import annotations

import pyarrow as pa

from legato_ingest.attribution.load.due import CLOCKS_APART_NS, Due
from legato_ingest.causes import HEALTHY
from legato_ingest.storage import Store

__all__ = ["superseded_stalls"]

_SUPERSEDED = f"""
SELECT tenant, toUnixTimestamp64Nano(start_time) AS start_ns, trace_id, span_id, gap_start_us, gap_us, engine_id
FROM verdicts FINAL
WHERE {{around}} AND vantage = 'server' AND cause != '{HEALTHY}'
    AND (tenant, trace_id) IN (SELECT tenant, trace_id FROM stream_revs WHERE {{inside}} AND vantage = 'client' AND {{which}})"""


def superseded_stalls(store: Store, due: Due) -> pa.Table:
    """Return the stalls of servers in traces with a due client: their key, ``gap_us`` and ``engine_id``."""
    return store.select_arrow(_SUPERSEDED.format(around=due.started(CLOCKS_APART_NS), inside=due.started(), which=due.which))
