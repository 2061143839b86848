"""Now: streams in flight, streams that are stalled while they run, and the state of their engines."""

from __future__ import annotations

from typing import Any

from dashboards.panels import Kit, lines, number, rows
from dashboards.sample_sql import values
from dashboards.scales import word
from dashboards.sql_fragments import SECONDS_OF_POINT, filters, in_whole_minutes
from legato_ingest.definitions import count_streams
from legato_ingest.reports.live import STALLED_STREAMS

__all__ = ["board"]

_VARIABLES = {"tenant": "tenant", "service": "service_name", "model": "model", "vantage": "vantage"}
_WHICH = filters(_VARIABLES)

IN_FLIGHT = f"""
SELECT
    sumIf(streams, vantage = 'client') AS "at clients", sumOrNullIf(streams, vantage = 'gateway') AS "at gateways",
    sumOrNullIf(streams, vantage = 'server') AS "at servers",
    ({count_streams(f"stalled_streams WHERE {_WHICH}")}) AS "stalled for 2 s or more",
    ({count_streams(f"stalled_streams WHERE silence_us >= 8000000 AND {_WHICH}")}) AS "for 8 s or more"
FROM streams_in_flight
WHERE {_WHICH}"""
LONGEST = f"""
SELECT maxOrNull(silence_us) / 1e6 AS "longest open gap", {word("gap", '"longest open gap"')} AS state,
    ({count_streams(f"stalled_streams WHERE {_WHICH}")}) AS n
FROM stalled_streams
WHERE {_WHICH}"""
# A process sends its number so often while it has any streams, and nothing while it has none.
_EVERY_S = 5
OVER_TIME = f"""
SELECT time, concat(service_name, ' · ', vantage) AS service, {_EVERY_S} * sum(value_sum) / {SECONDS_OF_POINT} AS "in flight"
FROM
(
    SELECT
        $__timeInterval(at) AS time, tenant, attributes['service.name'] AS service_name,
        attributes['legato.stream.vantage'] AS vantage, attributes['gen_ai.request.model'] AS model, value_sum
    FROM {values("'legato.stream.in_flight'")}
    WHERE {in_whole_minutes("at")}
)
WHERE {_WHICH}
GROUP BY time, service
ORDER BY time, service"""
SILENCES = f"""
SELECT
    $__timeInterval(recorded_at) AS time, concat(service_name, ' · ', vantage) AS service,
    uniqExact(trace_id, span_id) AS "streams silent for 2 s or more"
FROM stream_silences
WHERE $__timeFilter_ms(recorded_at) AND NOT resumed
    AND {_WHICH}
GROUP BY time, service
ORDER BY time, service"""
STALLED = f"""
SELECT
    lower(hex(trace_id)) AS stream, vantage, service_name AS service, model, engine, silence_us / 1e6 AS "silent for",
    start_time AS started,
    multiIf(cause != '', cause, gap_start_us = 0, 'waits for its first output', 'not judged yet') AS "cause so far"
FROM ({STALLED_STREAMS})
WHERE {_WHICH}
ORDER BY silence_us DESC, stream, vantage
LIMIT 200"""
ENGINES = """
SELECT
    engine_id AS engine, argMax(running, recorded_at) AS running, argMax(waiting, recorded_at) AS waiting,
    argMax(kv_used_ppm, recorded_at) / 1e6 AS "KV cache", sum(preempted) AS "preempted in the last minute",
    dateDiff('millisecond', max(recorded_at), now64(3)) / 1e3 AS "last step ago"
FROM engine_steps
WHERE recorded_at > now64(9) - INTERVAL 1 MINUTE
GROUP BY tenant, engine
ORDER BY engine
LIMIT 100"""


def _panels() -> list[Any]:
    return [
        number(
            "In flight now",
            "Running streams as applications report them every 5 s: one that is recorded at the client and at a server is in flight at "
            "both. Those of them that have had no content for 2 s or more count once.",
            IN_FLIGHT,
            "short",
            width=12,
            empty="no stream is reported",
        ),
        number(
            "Longest open gap",
            "The time since the last content of the stream that has been silent for longest; n: silent streams.",
            LONGEST,
            "s",
            "gap",
            width=12,
            empty="no stream is silent",
        ),
        rows(
            "Stalled now",
            "Running streams without content for 2 s or more, the longest first. Applications report them after 2 s, 8 s, 30 s, and then "
            "at three times the length, but every five minutes at least. A stream leaves the list when content arrives, when it ends, or "
            "when its next report is overdue. The cause is a first one, from the engine's steps so far; the verdict at the end of the "
            "stream replaces it.",
            STALLED,
            {"silent for": "s"},
            links={"engine": "/d/legato-nodes/nodes?var-engine=${__value.raw}&${__url_time_range}"},
            causes=("cause so far",),
            empty="No stalls: every running stream with the selected values had content within the last 2 s.",
        ),
        rows(
            "Engines",
            "The newest step of each engine in the last minute. An engine that stands still has an old last step, or is not listed.",
            ENGINES,
            {"KV cache": "percentunit", "last step ago": "s"},
            links={"engine": "/d/legato-nodes/nodes?var-engine=${__value.raw}&${__url_time_range}"},
            empty="No engine made a step in the last minute: it has no load, it stands still, or the engine's plugin or agent is missing.",
        ),
        lines("Streams in flight", "By service and vantage, the mean of each interval.", OVER_TIME, "short"),
        lines(
            "Silent streams",
            "Streams that were reported as silent in each interval, by service and vantage.",
            SILENCES,
            "short",
            empty="No stalls: no stream was silent for 2 s or more in this range.",
        ),
    ]


def board() -> Kit:
    """The dashboard."""
    kit = Kit(
        "legato-now",
        "Legato · Now",
        "What runs at this moment: streams in flight, streams that stand still, and their engines.",
        variables=_VARIABLES,
        empty="No application reported a stream in flight in this range. The SDK reports every 5 s while streams run.",
        since="now-15m",
        refresh="5s",
        annotated=False,
    )
    kit.add(*_panels())
    return kit
