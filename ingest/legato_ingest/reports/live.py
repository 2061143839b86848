"""What runs now: the streams in flight, those that are stalled with their growing gaps, and the state of their engines.

The SDK reports stalls and streams in flight while they last (views ``stalled_streams`` and ``streams_in_flight``). This module sends the
queries and returns their rows; it judges nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from legato_ingest.definitions import count_streams
from legato_ingest.reports.rows import Row, Run

__all__ = ["STALLED_STREAMS", "LiveQuery", "LiveResult", "as_json", "count_listed", "count_stalled", "fetch"]

# As many rows as a query returns at most.
_ALL = 2**32 - 1

_WHICH = "({service:String} = '' OR service_name = {service:String}) AND ({model:String} = '' OR model = {model:String})"
IN_FLIGHT = f"""
SELECT service_name AS service, vantage, model, sum(streams) AS in_flight
FROM streams_in_flight
WHERE {_WHICH}
GROUP BY service, vantage, model
ORDER BY in_flight DESC, service, vantage, model
"""
# The verdict on a stalled stream is at one of its vantages, and its rows at the others have it, too, as they have the engine that the
# server's row names. Where a trace has several silent streams at a vantage, nothing shows whether they are of one call. A verdict on an
# earlier gap of a stream says nothing about the open one.
STALLED_STREAMS = """
SELECT
    tenant, trace_id, vantage, service_name, model, start_time, gap_start_us, silence_us, max(engine_id::String) OVER streams AS engine,
    multiIf(
        gap_start_us = 0, ('', ''),
        own.1 != '', own,
        count() OVER streams = uniqExact(vantage) OVER streams, max(own) OVER streams,
        ('', '')) AS so_far,
    so_far.1 AS cause, so_far.2 AS confidence
FROM
(
    WITH (SELECT if(count() = 0, now64(9), min(start_time)) FROM stalled_streams) AS first_start
    SELECT *, if(newest.3 = gap_start_us, (newest.1, newest.2), ('', '')) AS own
    FROM stalled_streams
    LEFT JOIN
    (
        SELECT tenant, start_time, trace_id, span_id, argMax((cause::String, confidence::String, gap_start_us), gap_start_us) AS newest
        FROM verdicts FINAL
        WHERE cause != 'base' AND judged_at > now64(3) - INTERVAL 1 HOUR AND start_time >= first_start
            AND (tenant, start_time, trace_id, span_id) IN (SELECT tenant, start_time, trace_id, span_id FROM stalled_streams)
        GROUP BY tenant, start_time, trace_id, span_id
    ) AS judged USING (tenant, start_time, trace_id, span_id)
)
WINDOW streams AS (PARTITION BY tenant, trace_id)"""
"""The stalled streams, a row for each vantage, with the ``engine``, and with the ``cause`` of the open gap and its ``confidence``; both are
empty if it is not judged yet. The dashboard "Now" reads it as well."""
STALLED = f"""
SELECT
    lower(hex(trace_id)) AS trace, vantage, service_name AS service, model, silence_us, gap_start_us, engine,
    dateDiff('second', start_time, now()) AS age_s, cause, confidence
FROM ({STALLED_STREAMS})
WHERE {_WHICH}
ORDER BY silence_us DESC, trace, vantage
LIMIT {{rows:UInt32}}
"""
_STALLED_COUNT = count_streams("stalled_streams")
ENGINES = """
SELECT
    engine_id AS engine, argMax(running, recorded_at) AS running, argMax(waiting, recorded_at) AS waiting,
    argMax(kv_used_ppm, recorded_at) / 1e6 AS kv_used, sum(preempted) AS preempted, toUInt32(count()) AS steps,
    dateDiff('second', max(recorded_at), now()) AS age_s
FROM engine_steps
WHERE recorded_at > now64(9) - INTERVAL 1 MINUTE
GROUP BY tenant, engine
ORDER BY engine
LIMIT 50
"""


@dataclass(frozen=True, slots=True)
class LiveQuery:
    """The streams to show; empty names: any. ``limit``: the number of stalled streams to list."""

    service: str = ""
    model: str = ""
    limit: int = 20


@dataclass(frozen=True, slots=True)
class LiveResult:
    """The rows of the queries: one per service, vantage and model; per stalled stream and vantage; per engine with recent steps."""

    in_flight: Sequence[Row]
    stalled: Sequence[Row]
    engines: Sequence[Row]


def fetch(run: Run, query: LiveQuery, stalled_max: int = _ALL) -> LiveResult:
    """Send the queries; read at most ``stalled_max`` rows of stalled streams, those with the longest gaps. Raises what ``run`` raises."""
    which = {"service": query.service, "model": query.model}
    return LiveResult(run(IN_FLIGHT, which), run(STALLED, {**which, "rows": stalled_max}), run(ENGINES, {}))


def count_stalled(run: Run) -> int:
    """Return the number of stalled streams. Raises what ``run`` raises."""
    return int(run(_STALLED_COUNT, {})[0]["streams"])


def count_listed(stalled: Sequence[Row]) -> int:
    """Return the number of stalled streams in the rows of all of them, as ``count_stalled`` does."""
    most: dict[str, int] = {}
    for (trace, _), spans in Counter((row["trace"], row["vantage"]) for row in stalled).items():
        most[trace] = max(spans, most.get(trace, 0))
    return sum(most.values())


def as_json(result: LiveResult) -> dict[str, Any]:
    """Return the result as data; silences in µs."""
    return {"in_flight": list(result.in_flight), "stalled": list(result.stalled), "engines": list(result.engines)}
