"""SLO counters: how many of the rows just stored in ``stream_revs`` are good, or bad for a gap, an error or a late start.

The classification is that of the rollups (``rollups/queries.py``), computed column by column from the rows in memory, so that a scrape of
/metrics needs no query. Only streams that ended are counted: an abandoned stream has no end, and only the store can find it.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from legato_ingest.definitions import ERRORS

__all__ = ["count_results"]

_ERRORS = pa.array(ERRORS)


def count_results(rows: pa.Table, gap_us: int, first_us: int) -> list[tuple[str, str, str, int]]:
    """Return (service, vantage, result, number of streams) of the rows that end a stream with a known timeline.

    ``result`` is one of ``SLO_RESULTS``; ``gap_us`` and ``first_us`` are the SLO's limits of gap and first output, in µs.
    """
    rows = rows.filter(pc.and_(rows["ended"], pc.is_valid(rows["content_chunks"])))
    if not rows.num_rows:
        return []
    over_gap = pc.greater(pc.fill_null(rows["gap_max_us"], 0), gap_us)
    is_error = pc.is_in(rows["outcome"], _ERRORS)
    is_late = pc.greater(pc.coalesce(rows["ttfo_us"], rows["ttft_us"], pc.divide(rows["duration_ns"], 1000)), first_us)
    result = pc.if_else(over_gap, "gap", pc.if_else(is_error, "error", pc.if_else(is_late, "late", "good")))
    table = pa.table({"service": rows["service_name"], "vantage": rows["vantage"], "result": result})
    counted = table.group_by(["service", "vantage", "result"]).aggregate([([], "count_all")])
    return list(zip(*(counted[name].to_pylist() for name in (*table.column_names, "count_all")), strict=True))
