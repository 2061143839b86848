"""The stored verdicts on the gaps of recordings, read for a report.

A verdict belongs to the recording with its trace and span. Gaps that turned out to be healthy have one, too. This module judges no gap;
``verdict_words`` puts the evidence into words.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from legato_ingest.quoting import Value
from legato_ingest.reports.rows import Row, Run

__all__ = ["OF_SPANS", "span_parameters", "verdicts_on"]

OF_SPANS = """tenant = {tenant:String}
    AND start_time BETWEEN fromUnixTimestamp64Nano({first_ns:Int64}) AND fromUnixTimestamp64Nano({last_ns:Int64})
    AND has({spans:Array(String)}, lower(hex(span_id)))"""
"""The SQL condition that a row is about one of these recordings; its parameters are ``span_parameters``."""
_VERDICTS = f"""
SELECT
    lower(hex(trace_id)) AS trace, lower(hex(span_id)) AS span, gap_start_us, gap_us, excess_us, cause, confidence, share, parts, engine_id,
    step_first, step_last, missing, evidence, excluded, error_us, culprit_step, culprit_us, culprit_responses,
    toString(toUnixTimestamp64Nano(culprit_at)) AS culprit_at_ns
FROM verdicts FINAL
WHERE {OF_SPANS}
ORDER BY start_time, span, gap_start_us
"""


def span_parameters(rows: Sequence[Row]) -> dict[str, Value]:
    """Return the parameters of ``OF_SPANS`` for recordings (rows of ``find_stream``)."""
    starts = [int(row["start_ns"]) for row in rows]
    return {"tenant": rows[0]["tenant"], "spans": sorted({row["span"] for row in rows}), "first_ns": min(starts), "last_ns": max(starts)}


def verdicts_on(run: Run, rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return the newest verdict on each gap of these recordings, in order of time; ``parts`` in ns. Raises what ``run`` raises."""
    return run(_VERDICTS, span_parameters(rows))
