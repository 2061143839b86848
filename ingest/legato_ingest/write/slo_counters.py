"""SLO counters: how many of the rows just stored in ``stream_revs`` are good, or bad for a gap, an error or a late start.

The classification is that of the view `streams` and the rollups, computed column by column from the rows in memory, so that a scrape of
/metrics needs no query. Only streams that ended are counted: an abandoned stream has no end, and only the store can find it.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from legato_ingest.definitions import ERRORS
from legato_ingest.objectives import ANY, DEFAULT, Objective, like

__all__ = ["count_results"]

_ERRORS = pa.array(ERRORS)
_DEFAULTS = Objective(name=DEFAULT)


def count_results(rows: pa.Table, objectives: Sequence[Objective]) -> list[tuple[str, str, str, int]]:
    """Return (service, vantage, result, number of streams) of the rows that end a stream with a known timeline.

    ``result`` is one of ``SLO_RESULTS``, by the first of the ``objectives`` that matches the stream.
    """
    rows = rows.filter(pc.and_(rows["ended"], pc.is_valid(rows["content_chunks"])))
    if not rows.num_rows:
        return []
    gap_limits, first_limits = _limits(rows, objectives)
    over_gap = pc.greater(pc.fill_null(rows["gap_max_us"], 0), gap_limits)
    is_error = pc.is_in(rows["outcome"], _ERRORS)
    until_end = pc.if_else(pc.greater(rows["content_chunks"], 0), 0, pc.divide(rows["duration_ns"], 1000))
    is_late = pc.greater(pc.coalesce(rows["ttfo_us"], rows["ttft_us"], until_end), first_limits)
    result = pc.if_else(over_gap, "gap", pc.if_else(is_error, "error", pc.if_else(is_late, "late", "good")))
    table = pa.table({"service": rows["service_name"], "vantage": rows["vantage"], "result": result})
    counted = table.group_by(["service", "vantage", "result"]).aggregate([([], "count_all")])
    return list(zip(*(counted[name].to_pylist() for name in (*table.column_names, "count_all")), strict=True))


def _limits(rows: pa.Table, objectives: Sequence[Objective]) -> tuple[pa.Scalar | pa.Array, pa.Scalar | pa.Array]:
    """Return the limits of the gap and of the first output of each row, in µs."""
    gap: pa.Scalar | pa.Array = pa.scalar(_DEFAULTS.gap_limit_us, pa.uint64())
    first: pa.Scalar | pa.Array = pa.scalar(_DEFAULTS.first_output_limit_us, pa.uint64())
    # The last first, so that the first that matches is the one that stays.
    for each in reversed(objectives):
        matches = _matches(rows, each)
        gap = pc.if_else(matches, pa.scalar(each.gap_limit_us, pa.uint64()), gap)
        first = pc.if_else(matches, pa.scalar(each.first_output_limit_us, pa.uint64()), first)
    return gap, first


def _matches(rows: pa.Table, objective: Objective) -> pa.Scalar | pa.Array:
    """Return whether the objective matches, for each row; one value if it matches every row."""
    matches: pa.Scalar | pa.Array = pa.scalar(True)
    if objective.tenant != ANY:
        matches = pc.equal(rows["tenant"].cast(pa.string()), objective.tenant)
    for column, pattern in (("service_name", objective.service), ("model", objective.model), ("route", objective.route)):
        if pattern != ANY:
            matches = pc.and_(matches, pc.match_like(rows[column].cast(pa.string()), like(pattern)))
    return matches
