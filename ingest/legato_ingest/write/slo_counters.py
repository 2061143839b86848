"""How rows of `stream_revs` fare against the SLO: good, or bad for a gap, an error or a late start. For the counters of /metrics.

One idea: the same partition as the rollup's (`rollup_queries`), made of the rows that were just stored, a column at a time, so that a
scrape asks no store. It counts ends only: a stream that nobody ended is abandoned later, which only the store can tell.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from legato_ingest.definitions import ERRORS

__all__ = ["results_of"]

_ERRORS = pa.array(ERRORS)


def results_of(rows: pa.Table, gap_us: int, first_us: int) -> list[tuple[str, str, str, int]]:
    """(service, vantage, result, streams) of the rows that end a stream whose timeline is known. The limits are those of the SLO, in µs."""
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
